"""Tiny checkpoints with random weights and a real tokenizer, written by Transformers.

Small enough to build in milliseconds, and random in every tensor: an untrained
model has biases of 0 and LayerNorm weights of 1, which would hide a term that
is left out or applied twice.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from tests import tiny_tokenizers

transformers.utils.logging.disable_progress_bar()

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_WORDS = """
a about above after again against all almost also always am an and another any are around as ask at
away back bad be because bed been before began being best better between big bird black blue boat
body book both boy bring brought but by call came can car carry change children city close cold come
could country cut day did different do does dog done door down draw each early earth east eat end
enough even ever every example eye face family far fast father feel few film find fire first fish
five food for found four friend from front gave get girl give go gold good got great green group
grow had half hand happy hard has have he head hear heart heavy help her here high him his hold home
horse hot hour house how hundred i idea if in into is it just keep kind king knew know land large
last late laugh learn leave left less let letter life light like line list little live long look
love low made make man many map mark may me mean men might mile mind money moon more morning most
mother mountain move much music must my name near need never new next night no north not now
number of off often old on once one only open or order other our out over own page paper part pass
people perhaps picture piece place plan plant play point problem put question quick quite rain read
ready real red rest right river road rock room round run said same saw say school sea second see
seem sentence set seven several she ship short should show side simple since sing sit six sky sleep
slow small snow so some song soon sound south stand star start state stay still stood stop story
strong such sun sure table take talk teach tell ten than that the their them then there these they
thing think this those thought three through time to together told too took town travel tree true
try turn two under until up upon us use very voice wait walk want war warm was watch water way we
week well went were west what wheel when where which while white who whole why will wind with
without woman wonder wood word work world would write year you young
"""
WORDS = _WORDS.split()

ENDINGS = ("##s", "##ed", "##ing", "##er", "##est", "##ly", "##ness", "##ful", "##un", "##ion")

LETTERS = "".join(map(chr, range(33, 127))) + "äéñöüßçœøλжшא中文国人日本語한국"
"""Every printable character of ASCII, and a few beyond."""

TEXTS = (
    "a good film",
    "The story was slow, and the sound was bad!",
    "I would not watch it again... would you?",
    "unwatchable",
    "",
    "日本語 and 中文 in one line, and 龘",
    "Perhaps the best thing about this picture is that it is short; 7 of 10.",
    "word " * 40,
)
"""Inputs of 2 to 42 tokens: words, pieces, unknown characters, nothing at all."""


def make_bert(folder: Path, *, lowercase: bool = True, **options: Any) -> Path:
    """A BERT sequence classifier. The options are those of ``make``."""
    return make(folder, "bert", lowercase=lowercase, **options)


def make(
    folder: Path,
    family: str,
    *,
    num_labels: int | None = 2,
    problem_type: str | None = None,
    seed: int = 0,
    initializer_range: float = 0.3,
    hidden_size: int = 32,
    layers: int = 2,
    heads: int = 4,
    intermediate_size: int = 64,
    max_position_embeddings: int = 128,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    lowercase: bool = True,
    head: str = "ForSequenceClassification",
    **config: Any,
) -> Path:
    """Write a model, mostly a sequence classifier, and its tokenizer into ``folder``; return it.

    head               how the name of Transformers' class ends: ForTokenClassification, Model, …
    num_labels         None where ``config`` has an id2label
    initializer_range  standard deviation of every weight and bias; a LayerNorm weight is 1 + that
    config             further keys of the config, under the family's own names
    """
    kind = KINDS[family]
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = kind.write_tokenizer(folder, lowercase)
    settings = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "layers": layers,
        "heads": heads,
        "intermediate_size": intermediate_size,
        "max_position_embeddings": max_position_embeddings,
    }
    settings = {kind.keys.get(name, name): value for name, value in settings.items()}
    if num_labels is not None:
        settings["num_labels"] = num_labels
    settings |= {"pad_token_id": pad_id(folder)} if family == "modernbert" else {}
    settings |= {"problem_type": problem_type, "initializer_range": initializer_range} | config
    with torch.random.fork_rng(devices=[]):  # Transformers draws numbers that are then replaced
        model = getattr(transformers, kind.prefix + head)(
            getattr(transformers, kind.config)(**settings)
        )
    randomize(model, seed, initializer_range)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


_SHARED: dict[str, Path] = {}


def shared(family: str = "bert", **options: Any) -> Path:
    """The folder of ``make(family, **options)``, built once a process. Only read it."""
    key = repr((family, sorted(options.items())))
    if key not in _SHARED:
        root = Path(tempfile.mkdtemp(prefix="tiny-checkpoint-"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        _SHARED[key] = make(root / family, family, **options)
    return _SHARED[key]


def randomize(model: torch.nn.Module, seed: int, spread: float) -> None:
    """Give every parameter normal numbers, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            middle = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            parameter.normal_(middle, spread, generator=generator)


def edit_config(folder: Path, *, without: Sequence[str] = (), **changes: Any) -> Path:
    """Set keys of config.json, and drop others."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: config[key] for key in config if key not in without}))
    return folder


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    """Replace the tensors of model.safetensors by what ``edit`` makes of them."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    path.unlink()  # ``load_file`` maps it; writing into it would change what others have mapped
    save_file(edit(tensors), path, metadata={"format": "pt"})
    return folder


_REFERENCES: dict[tuple[str, str], list[Tensor]] = {}


def _referred(folder: Path, asked: str, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """What ``compute`` gives, computed once a process for what these files say and what is asked.

    Planted faults are all held against one reference.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    key = digest.hexdigest(), asked
    if key not in _REFERENCES:
        _REFERENCES[key] = compute()
    return [tensor.clone() for tensor in _REFERENCES[key]]


def reference_logits(folder: Path, texts: Sequence[str | tuple[str, str]]) -> Tensor:
    """What Transformers gives for each text or pair by itself: float32 (texts, labels)."""
    asked = f"logits of {list(texts)!r}"
    return torch.stack(_referred(folder, asked, lambda: _logits(folder, texts)))


def _logits(folder: Path, texts: Sequence[str | tuple[str, str]]) -> list[Tensor]:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        for text in texts:
            first, second = (text, None) if isinstance(text, str) else text
            encoded = tokenizer(first, second, truncation=True, return_tensors="pt")
            rows.append(model(**encoded).logits[0])
    return rows


def reference_states(folder: Path, texts: Sequence[str], kind: str = "AutoModel") -> list[Tensor]:
    """Transformers' last hidden states, float32 (tokens, D), of each text by itself.

    ``kind`` AutoModelForTokenClassification: logits, (tokens, labels).
    """
    asked = f"{kind} of {list(texts)!r}"
    return _referred(folder, asked, lambda: _states(folder, texts, kind))


def _states(folder: Path, texts: Sequence[str], kind: str) -> list[Tensor]:
    model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        for text in texts:
            encoded = tokenizer(text, truncation=True, return_tensors="pt")
            rows.append(model(**encoded)[0][0])
    return rows


def add_modules(folder: Path, *modules: dict[str, Any], **files: dict[str, Any]) -> Path:
    """Make the folder one of sentence-transformers: Transformer, then these modules.

    A module has a ``type`` such as Pooling, the keys of its config, and a Dense or LayerNorm
    module ``tensors``. ``files`` are further JSON files by the start of their names.
    """
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    for number, module in enumerate(modules, 1):
        config = dict(module)
        kind, tensors = config.pop("type"), config.pop("tensors", None)
        path = f"{number}_{kind}"
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(config))
        if tensors is not None:
            save_file(tensors, folder / path / "model.safetensors")
        kind = f"sentence_transformers.models.{kind}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": kind})
    (folder / "modules.json").write_text(json.dumps(listed))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def write_wordpiece(folder: Path, lowercase: bool = True) -> int:
    """A BERT tokenizer over ``WORDS``: tokenizer.json and tokenizer_config.json.

    Returns the size of its vocabulary.
    """
    pieces = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *ENDINGS, *WORDS]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercase,
        "model_max_length": 10**30,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(vocabulary)


def pad_id(folder: Path) -> int:
    """The id of the pad token of the tokenizer in a folder."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return int(tokenizer.token_to_id("[PAD]"))


def write_modern_byte_level(folder: Path, lowercase: bool = True) -> int:
    """ModernBERT's kind of tokenizer; returns the size of its vocabulary."""
    names = ["input_ids", "attention_mask"]
    return _write_fast(folder, tiny_tokenizers.modern_byte_level(), names)


def write_deberta_unigram(folder: Path, lowercase: bool = True) -> int:
    """DeBERTa v3's kind of tokenizer; its model's table is longer than it, as the real one's."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return _write_fast(folder, tiny_tokenizers.deberta_unigram(), names) + 28


def _write_fast(folder: Path, tokenizer: tokenizers.Tokenizer, inputs: list[str]) -> int:
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": inputs,
        "model_max_length": 10**30,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return int(tokenizer.get_vocab_size())


@dataclass(frozen=True)
class Kind:
    """How a family is built: Transformers' classes, its names of our options, its tokenizer."""

    config: str
    prefix: str
    keys: dict[str, str]
    write_tokenizer: Callable[[Path, bool], int]


_BERT_KEYS = {"layers": "num_hidden_layers", "heads": "num_attention_heads"}
_DISTILBERT_KEYS = {
    "hidden_size": "dim",
    "layers": "n_layers",
    "heads": "n_heads",
    "intermediate_size": "hidden_dim",
}


def _bert_kin(name: str, keys: dict[str, str] = _BERT_KEYS) -> Kind:
    return Kind(f"{name}Config", name, keys, write_wordpiece)


# The ids of a tokenizer say nothing about a family: all but BERT's own kin are built with
# WordPiece too, whose pad id, 0, is then told to their configs.
KINDS = {
    "bert": _bert_kin("Bert"),
    "ernie": _bert_kin("Ernie"),
    "electra": _bert_kin("Electra"),
    "distilbert": _bert_kin("DistilBert", _DISTILBERT_KEYS),
    "albert": _bert_kin("Albert"),
    "mpnet": _bert_kin("MPNet"),
    "roberta": _bert_kin("Roberta"),
    "xlm-roberta": _bert_kin("XLMRoberta"),
    "camembert": _bert_kin("Camembert"),
    "modernbert": Kind(
        "ModernBertConfig",
        "ModernBert",
        _BERT_KEYS,
        write_modern_byte_level,
    ),
    "deberta-v2": Kind(
        "DebertaV2Config",
        "DebertaV2",
        _BERT_KEYS,
        write_deberta_unigram,
    ),
}
