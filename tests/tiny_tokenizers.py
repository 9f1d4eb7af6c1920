"""Tiny tokenizers of every kind that encoders use, and texts to try them on.

Each builder gives a `tokenizers.Tokenizer`; ``saved`` writes one into a folder
and describes it as a checkpoint, so that no weights are needed to test the
tokenizer. Nothing is downloaded.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from packhorse.checkpoint import Architecture, Checkpoint, ProblemType

_WORDS = """
a about after again all an and are as at away bad be because been before best better big
black book but by came can child city close cold come could day did do door down early earth
eat end every eye face far fast father feel film find fire first five food for found friend
from game gave get girl give go gold good great green had half hand happy hard have he head
hear heart help her high him his home horse hot hour house how i if in into is it just keep
kind know land large last late laugh learn leave left less let life light like line little
live long look love made make man many me mean men mind money moon more most mother mountain
"""
WORDS = _WORDS.split()

_PIECES = ["s", "ed", "ing", "er", "est", "ly", "ness", "ful", "un", "ion", "able"]
_LETTERS = "".join(map(chr, range(33, 127))) + "äéñöüßçœøλσςжшαи文中国日本語한국。！éI️😀"
_BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def word_piece(*, lowercase: bool = True) -> tokenizers.Tokenizer:
    """As BERT's: [CLS] a [SEP] b [SEP], and token type 1 for the second segment."""
    vocab = [*_BERT_SPECIAL, *dict.fromkeys(_LETTERS), *WORDS[1:]]
    vocab += [f"##{piece}" for piece in dict.fromkeys([*_LETTERS, *_PIECES])]
    vocab = list(dict.fromkeys(vocab))
    ids = {token: i for i, token in enumerate(vocab)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(_BERT_SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer


def byte_level() -> tokenizers.Tokenizer:
    """As RoBERTa's: byte-level BPE, <s> a </s></s> b </s>, one token type, <mask> eats spaces."""
    tokenizer = tokenizers.Tokenizer.from_str(_trained_byte_level())
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer


@functools.cache
def _trained_byte_level() -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=_ROBERTA_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(0)
    tokenizer.train_from_iterator([" ".join(rng.choices(WORDS, k=500))], trainer)
    return str(tokenizer.to_str())


def unigram() -> tokenizers.Tokenizer:
    """As XLM-R's: SentencePiece unigram with its character map; the template is RoBERTa's."""
    pieces = [(token, 0.0) for token in _ROBERTA_SPECIAL] + [("▁", -2.0)]
    pieces += [(f"▁{word}", -4.0 - i / 50) for i, word in enumerate(WORDS)]
    pieces += [(piece, -5.0) for piece in [*_PIECES, "o w", "中国"]]
    pieces += [(letter, -8.0) for letter in dict.fromkeys(_LETTERS)]
    pieces = list(dict(reversed(pieces)).items())[::-1]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(character_map(_CHARACTERS)), _fold_spaces()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(_ROBERTA_SPECIAL[:4])
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


def modern_byte_level() -> tokenizers.Tokenizer:
    """As ModernBERT's: byte-level BPE over NFC, [CLS] a [SEP] b [SEP], runs of spaces as tokens."""
    trained = tokenizers.Tokenizer.from_str(_trained_byte_level())
    tokenizer = tokenizers.Tokenizer(trained.model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    spaces = [" " * count for count in range(2, 9)]
    tokenizer.add_tokens([tokenizers.AddedToken(run, normalized=True) for run in spaces])
    _add_bert_template(tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def deberta_unigram() -> tokenizers.Tokenizer:
    """As DeBERTa v3's: SentencePiece unigram, [CLS] a [SEP] b [SEP], special tokens in front."""
    pieces = [(token, 0.0) for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")] + [("▁", -2.0)]
    pieces += [(f"▁{word}", -4.0 - i / 50) for i, word in enumerate(WORDS)]
    pieces += [(piece, -5.0) for piece in [*_PIECES, "中国"]]
    pieces += [(letter, -8.0) for letter in dict.fromkeys(_LETTERS)]
    pieces = list(dict(reversed(pieces)).items())[::-1]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.Precompiled(character_map(_CHARACTERS)), _fold_spaces()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    _add_bert_template(tokenizer)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _add_bert_template(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]"])
    tokenizer.add_special_tokens([tokenizers.AddedToken("[MASK]", lstrip=True, normalized=False)])
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=ids,
    )


def _fold_spaces() -> normalizers.Replace:
    return normalizers.Replace(tokenizers.Regex(" {2,}"), " ")


BUILDERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "word_piece": word_piece,
    "word_piece_cased": functools.partial(word_piece, lowercase=False),
    "byte_level": byte_level,
    "unigram": unigram,
    "modern_byte_level": modern_byte_level,
    "deberta_unigram": deberta_unigram,
}
"""Every kind, by name."""

_CHARACTERS = {
    "\n": " ",
    "\t": " ",
    "\u00a0": " ",
    "\u3000": " ",
    "\u200b": " ",
    "\u00ad": "",
    "ﬁ": "fi",
    "①": "1",
    "e\u0301": "é",
    "o\u0308": "ö",
    "！": "!",
    "\ufdfa": "a b c",
}
"""A few of the rules of SentencePiece's usual character map, of each kind it has."""


def character_map(rules: Mapping[str, str]) -> bytes:
    """SentencePiece's compiled form of rules from a string to what it becomes.

    A trie over the bytes of the strings, as one array of 32-bit units, then the
    results, each with a NUL after it. A unit is found at its parent's base
    exclusive-or the byte; it holds that byte, whether a rule ends here (bit 8),
    and (from bit 10) what leads to its own base; a rule's result is at the base.
    Here every node's base is a block of 256 of its own: wasteful and simple.
    """
    results = b"".join(result.encode() + b"\0" for result in rules.values())
    starts, start = {}, 0
    for key, result in rules.items():
        starts[key.encode()] = start
        start += len(result.encode()) + 1
    nodes = sorted({key[:end] for key in starts for end in range(len(key) + 1)})
    bases = {node: 256 * (i + 1) for i, node in enumerate(nodes)}
    units = [0] * (256 * (len(nodes) + 1))
    for node in nodes:
        place = bases[node[:-1]] ^ node[-1] if node else 0
        label = node[-1] if node else 0
        units[place] = label | (node in starts) << 8 | (place ^ bases[node]) << 10
        if node in starts:
            units[bases[node]] = starts[node] | 1 << 31
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + results


def saved(
    tokenizer: tokenizers.Tokenizer,
    folder: Path,
    *,
    max_length: int = 64,
    vocab_size: int | None = None,
    **architecture: Any,
) -> Checkpoint:
    """The tokenizer in a model folder that has nothing else.

    Position 0 is the first unless ``<pad>`` tells that it is of RoBERTa's kin.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    kin = tokenizer.token_to_id("<pad>") is not None
    pad_token_id = tokenizer.token_to_id("<pad>" if kin else "[PAD]") or 0
    shape: dict[str, Any] = {
        "family": "roberta" if kin else "bert",
        "vocab_size": tokenizer.get_vocab_size() if vocab_size is None else vocab_size,
        "embedding_size": 32,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 64,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 1024,
        "first_position": pad_token_id + 1 if kin else 0,
        "type_vocab_size": 1 if kin else 2,
        "pad_token_id": pad_token_id,
        "torch_dtype": None,
    }
    return Checkpoint(
        model_id="tiny",
        revision=None,
        folder=folder,
        transformer=folder,
        config={},
        architecture=Architecture(**(shape | architecture)),
        labels=("no", "yes"),
        problem_type=ProblemType.SINGLE_LABEL,
        max_length=max_length,
    )


_POOLS: tuple[Sequence[str], ...] = (
    [chr(code) for code in range(0x250)],
    [chr(code) for code in range(0x4E00, 0x9FFF, 7)],
    [chr(code) for code in range(0x1F300, 0x1F700)],
    [chr(code) for code in range(0x300, 0x370)],
    [
        " ",
        " ",
        "\t",
        "\n",
        "\r\n",
        "\u00a0",
        "\u2028",
        "\u200b",
        "\ufeff",
        "\u3000",
        "\x0b",
        "\x85",
    ],
    [
        "é",
        "ü",
        "ﬁ",
        "ß",
        "İ",
        "ı",
        "Å",
        "Σ",
        "ς",
        "①",
        "ﷺ",
        "！",
        "。",
        "가",
        "ᄀ",
        "ᅡ",
        "ᆨ",
        "ำ",
        "ﾞ",
    ],
    [*_BERT_SPECIAL, *_ROBERTA_SPECIAL, "[", "]", "##ing", "##", "▁", "'s", "..."],
    [" ", *WORDS[:60]],
    [f" {word}" for word in WORDS[60:]],
    [f"{word}{piece}" for word in WORDS[:12] for piece in _PIECES],
)
_ANYWHERE = range(0x110000)


@functools.cache
def fuzzed_texts(count: int, seed: int = 0, pieces: int = 30) -> tuple[str, ...]:
    """Texts of up to so many pieces from every corner of Unicode; no lone surrogates."""
    rng = random.Random(seed)
    return tuple("".join(_piece(rng) for _ in range(rng.randrange(pieces))) for _ in range(count))


def _piece(rng: random.Random) -> str:
    if rng.random() < 0.05:
        code = rng.choice(_ANYWHERE)
        return "" if 0xD800 <= code < 0xE000 else chr(code)
    return rng.choice(rng.choice(_POOLS))
