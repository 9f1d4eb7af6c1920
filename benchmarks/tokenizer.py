"""Texts a second on one core: Packhorse's tokenizer, and the libraries below it.

    python benchmarks/tokenizer.py
    python benchmarks/tokenizer.py --model FOLDER --json benchmarks/results/tokenizer.json

Every row is measured in a process of its own, in seconds of CPU time, as what
else runs on the machine then matters less. ``first pass`` is over texts that
the process has not seen: nanotoken keeps the words it has met, so later passes
are faster, and what a server sees lies between the two.

The file is not called tokenizers.py: beside it, ``import tokenizers`` would
find it instead of the library.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core, for `tokenizers` too

from packhorse import __version__
from packhorse.checkpoint import DEMO_MODEL, load_checkpoint
from packhorse.tokenizing.tokenizer import Tokenizer

TEXTS = Path(__file__).parent / "data" / "reviews.tsv"
SETUPS = (
    "packhorse, nanotoken",
    "packhorse, tokenizers",
    "nanotoken alone",
    "tokenizers alone",
)
BATCHES = (1, 32, 256, 1000)
PASSES = 5


def main() -> None:
    options = parsed()
    if options.row is not None:
        setup, batch = options.row.split("|")
        print(json.dumps(measured(setup, int(batch), options)))
        return
    rows = [row_from_a_fresh_process(setup, batch) for setup in SETUPS for batch in BATCHES]
    report = {"machine": machine(), "versions": versions(), "rows": rows}
    print(table(report))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Texts a second on one core.")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="a model folder")
    parser.add_argument("--texts", type=Path, default=TEXTS, help="TSV; its last column is used")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser.parse_args()


def row_from_a_fresh_process(setup: str, batch: int) -> dict[str, object]:
    command = [sys.executable, *sys.argv, "--row", f"{setup}|{batch}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, object] = json.loads(done.stdout)
    return row


def measured(setup: str, batch: int, options: argparse.Namespace) -> dict[str, object]:
    """One row: texts a second of the first pass over all texts, and the median of the later ones.

    `tokenizers` takes so long that it reads every tenth text.
    """
    lines = options.texts.read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.rsplit("\t", 1)[-1] for line in lines]
    texts = texts[::10] if "tokenizers" in setup else texts
    batches = [texts[i : i + batch] for i in range(0, len(texts), batch)]
    encode = encoder(setup, options.model)
    encode(["warm"])
    seconds = []
    for _ in range(1 + PASSES):
        start = time.process_time()
        for each in batches:
            encode(each)
        seconds.append(time.process_time() - start)
    return {
        "setup": setup,
        "batch": batch,
        "texts": len(texts),
        "first_pass": len(texts) / seconds[0],
        "later": len(texts) / statistics.median(seconds[1:]),
    }


def encoder(setup: str, model: Path) -> Callable[[list[str]], object]:
    """What is timed: from a list of texts to ids, special tokens included."""
    checkpoint = load_checkpoint(str(model))
    serving, _, library = setup.partition(", ")
    if serving == "packhorse":
        tokenizer = Tokenizer.load(checkpoint, backend=library, parallel=False)  # type: ignore[arg-type]
        return tokenizer.encode
    if setup == "nanotoken alone":
        import nanotoken

        text = checkpoint.tokenizer_file.read_text(encoding="utf-8")
        fast = nanotoken.Tokenizer.from_json(text)
        return lambda texts: fast.encode_batch(texts, max_length=512, parallel=False)
    import tokenizers

    slow = tokenizers.Tokenizer.from_file(str(checkpoint.tokenizer_file))
    slow.enable_truncation(512)
    slow.no_padding()
    return lambda texts: [encoding.ids for encoding in slow.encode_batch_fast(texts)]


def machine() -> dict[str, object]:
    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {"cpu": cpu, "cores": os.cpu_count(), "system": platform.system()}


def versions() -> dict[str, str]:
    names = ("nanotoken", "tokenizers", "numpy")
    return {
        "python": platform.python_version(),
        "packhorse": __version__,
        **{name: version(name) for name in names},
    }


def table(report: dict[str, object]) -> str:
    rows = report["rows"]
    assert isinstance(rows, list)
    lines = [f"{report['machine']}", f"{report['versions']}", ""]
    lines.append(f"{'texts/s on one core':<24}{'batch':>6}{'first pass':>14}{'later':>14}")
    for row in rows:
        figures = f"{row['first_pass']:>14,.0f}{row['later']:>14,.0f}"
        lines.append(f"{row['setup']:<24}{row['batch']:>6}{figures}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
