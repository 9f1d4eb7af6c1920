"""Temporary."""
import sys, importlib.util, statistics
sys.path.insert(0, "benchmarks")
import kernels as K
import torch
from packhorse.kernels import attention, tiles
from packhorse.kernels.tiles import AttentionTile
src = open("src/packhorse/kernels/attention.py").read()
A = "    acc, top, total = _visit(\n        acc, top, total, q, keys, values, stride, scale,\n        first_key, first_key + open_keys"
B = "        HEAD, BLOCK_HEAD, OPEN_KEYS, OPEN_STAGES, False,\n    )  # fmt: skip\n"
assert A in src and B in src
branch = src.replace(A, "    if alone:\n      acc, top, total = _visit(\n        acc, top, total, q, keys, values, stride, scale,\n        first_key, first_key + open_keys")
O1 = "    head = tl.program_id(0) % HEADS\n    first_row = (tl.program_id(0) // HEADS) * ROWS\n"
assert O1 in src
O2 = "    across = tl.cdiv(num_tokens, ROWS)\n    head = tl.program_id(0) // across\n    first_row = (tl.program_id(0) % across) * ROWS\n"
variants = {"base": src, "branch": branch, "order": src.replace(O1, O2), "both": branch.replace(O1, O2)}
mods = {}
for n, text in variants.items():
    path = f"/tmp/attn_{n}.py"
    open(path, "w").write(text)
    spec = importlib.util.spec_from_file_location(f"attn_{n}", path)
    mods[n] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mods[n])
for tile in (AttentionTile(64, 4, 64, 3, 32, 3), AttentionTile(64, 4, 32, 3, 32, 3), AttentionTile(64, 4, 64, 2, 32, 3)):
    with K.pinned("packed_attention", tile):
        for n, m in mods.items():
            K.attention = m
            out = []
            for heads in (12, 24):
                for tokens in (4096, 16384):
                    for mix, lengths in K.mixes(tokens, None).items():
                        us, _ = K.measure(K.cases(lengths, heads)["packed_attention"])
                        out.append(f"{tokens} {mix} {heads}: {us:.1f}")
            print(tile, n, out, flush=True)
