"""The tiny checkpoints of the other tests: what those take for granted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file

from tests.tiny_checkpoints import TEXTS, WORDS, make_bert, reference_logits, shared


def test_no_tensor_is_at_its_untrained_value() -> None:
    for name, tensor in load_file(shared() / "model.safetensors").items():
        middle = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        assert tensor.std() > 0.05, name
        assert (tensor - middle).abs().min() > 0, name


def test_seed_decides_the_weights_and_torch_keeps_its_own(tmp_path: Path) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    tensors = [
        load_file(make_bert(tmp_path / str(number), seed=seed) / "model.safetensors")
        for number, seed in enumerate((1, 1, 2))
    ]
    first, second, other = (tensors[number]["classifier.weight"] for number in range(3))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("lowercase", [True, False])
def test_tokenizer_is_the_same_to_both_libraries(tmp_path: Path, lowercase: bool) -> None:
    folder = make_bert(tmp_path, lowercase=lowercase)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        assert theirs(text)["input_ids"] == plain.encode(text).ids
    pair = plain.encode("a good film", "Bad!")
    assert theirs("a good film", "Bad!")["input_ids"] == pair.ids
    assert theirs("a good film", "Bad!")["token_type_ids"] == pair.type_ids
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    assert plain.get_vocab_size() == len(theirs) == vocab_size


def test_vocabulary_has_words_pieces_and_every_ascii_character() -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(shared() / "tokenizer.json"))
    assert len(set(WORDS)) > 200
    assert "[UNK]" not in tokenizer.encode("".join(map(chr, range(32, 127)))).tokens
    assert "[UNK]" not in tokenizer.encode("中文 watching unwatchable").tokens
    assert "[UNK]" in tokenizer.encode("龘").tokens


def test_texts_are_told_apart() -> None:
    logits = reference_logits(shared(num_labels=3), [*TEXTS, ("a good film", "bad")])
    assert torch.pdist(logits).min() > 1e-2
