"""Columns that are added to rows: of which kind each is, and how its values are spelled.

A kind turns the values of N rows into JSON, into fields of CSV, and into an Arrow array. CSV has
neither lists nor objects: what is one stands there as JSON.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from packhorse.entities import Entity
from packhorse.request import Float32Array
from packhorse.tokenizing.masks import Fills
from packhorse.vectors import SparseVector

_JSON_MARKS = '[]{}":, '
"""Some of what stands around values in JSON; a tab or a line feed never does."""


@dataclass(frozen=True, slots=True)
class AddedColumn(ABC):
    """One column. What ``values`` are depends on the kind; there is one for each row."""

    name: str

    @abstractmethod
    def json(self, values: Any) -> list[str]:
        """Each row's value as JSON."""

    def plain(self, values: Any) -> list[str]:
        """Each row's value as a field of CSV, before quoting."""
        return self.json(values)

    def may_hold(self, mark: str) -> bool:
        """Whether a field may have ``mark`` in it, so that it cannot be written unquoted."""
        return mark in _JSON_MARKS

    @abstractmethod
    def arrow_type(self, arrow: Any) -> Any:
        """Its type in Parquet. ``arrow`` is pyarrow."""

    def arrow_array(self, arrow: Any, values: Any) -> Any:
        """The values as an array of that type."""
        return arrow.array(list(values), self.arrow_type(arrow))


@dataclass(frozen=True, slots=True)
class LabelColumn(AddedColumn):
    """One of ``labels`` for each row: a list of N texts."""

    labels: tuple[str, ...]

    def json(self, values: Sequence[str]) -> list[str]:
        spelled = {label: _json(label) for label in self.labels}
        return [spelled[value] for value in values]

    def plain(self, values: Sequence[str]) -> list[str]:
        return list(values)

    def may_hold(self, mark: str) -> bool:
        return any(mark in label for label in self.labels)

    def arrow_type(self, arrow: Any) -> Any:
        return arrow.string()


@dataclass(frozen=True, slots=True)
class ScoreColumn(AddedColumn):
    """A number for each row: float32 (N,)."""

    def json(self, values: Float32Array) -> list[str]:
        return score_texts(values)

    def may_hold(self, mark: str) -> bool:
        return mark in "-+.e0123456789"

    def arrow_type(self, arrow: Any) -> Any:
        return arrow.float32()


@dataclass(frozen=True, slots=True)
class LabelsColumn(AddedColumn):
    """Several of ``labels`` for each row: N lists of texts."""

    labels: tuple[str, ...]

    def json(self, values: Sequence[Sequence[str]]) -> list[str]:
        spelled = {label: _json(label) for label in self.labels}
        return [f"[{', '.join([spelled[label] for label in row])}]" for row in values]

    def arrow_type(self, arrow: Any) -> Any:
        return arrow.list_(arrow.string())


@dataclass(frozen=True, slots=True)
class ScoresColumn(AddedColumn):
    """Several numbers for each row: float32 (N, k)."""

    def json(self, values: Float32Array) -> list[str]:
        return [f"[{', '.join(score_texts(row))}]" for row in values]

    def arrow_type(self, arrow: Any) -> Any:
        return arrow.list_(arrow.float32())


@dataclass(frozen=True, slots=True)
class VectorColumn(AddedColumn):
    """A vector for each row, (N, width) of the NumPy type ``dtype``."""

    dtype: str
    width: int

    def json(self, values: NDArray[Any]) -> list[str]:
        if values.dtype.kind == "f":
            values = shortest(values)
        return [msgspec.json.encode(row).decode() for row in values.tolist()]

    def arrow_type(self, arrow: Any) -> Any:
        return arrow.list_(arrow.from_numpy_dtype(np.dtype(self.dtype)), self.width)

    def arrow_array(self, arrow: Any, values: NDArray[Any]) -> Any:
        flat = np.ascontiguousarray(values).reshape(-1)
        return arrow.FixedSizeListArray.from_arrays(arrow.array(flat), type=self.arrow_type(arrow))


@dataclass(frozen=True, slots=True)
class SparseVectorColumn(AddedColumn):
    """The numbers of a vector that are not 0, for each row: N sparse vectors."""

    def json(self, values: Sequence[SparseVector]) -> list[str]:
        return [msgspec.json.encode(self._pairs(vector)).decode() for vector in values]

    def arrow_type(self, arrow: Any) -> Any:
        return arrow.list_(arrow.struct([("index", arrow.int32()), ("value", arrow.float32())]))

    def arrow_array(self, arrow: Any, values: Sequence[SparseVector]) -> Any:
        return arrow.array([self._pairs(vector) for vector in values], self.arrow_type(arrow))

    def _pairs(self, vector: SparseVector) -> list[dict[str, Any]]:
        numbers = zip(vector.indices.tolist(), shortest(vector.values).tolist(), strict=True)
        return [{"index": index, "value": value} for index, value in numbers]


@dataclass(frozen=True, slots=True)
class EntitiesColumn(AddedColumn):
    """The entities of each row's text: N lists. ``has_index`` where tokens are not aggregated."""

    has_index: bool

    def may_hold(self, mark: str) -> bool:
        return mark >= " "  # a word may be anything, and JSON has other signs for what controls

    def json(self, values: Sequence[Sequence[Entity]]) -> list[str]:
        encode = msgspec.json.encode
        return [encode([self._fields(each) for each in row]).decode() for row in values]

    def arrow_type(self, arrow: Any) -> Any:
        fields = [("label", arrow.string()), ("score", arrow.float32()), ("word", arrow.string())]
        fields += [("start", arrow.int32()), ("end", arrow.int32())]
        if self.has_index:
            fields.append(("index", arrow.int32()))
        return arrow.list_(arrow.struct(fields))

    def arrow_array(self, arrow: Any, values: Sequence[Sequence[Entity]]) -> Any:
        rows = [[self._fields(each) for each in row] for row in values]
        return arrow.array(rows, self.arrow_type(arrow))

    def _fields(self, entity: Entity) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "label": entity.label,
            "score": float(str(np.float32(entity.score))),  # few digits, the same float32
            "word": entity.word,
            "start": entity.start,
            "end": entity.end,
        }
        return fields | {"index": entity.index} if self.has_index else fields


@dataclass(frozen=True, slots=True)
class FillsColumn(AddedColumn):
    """What fills the masks of each row's text: N lists of a list for each mask."""

    def may_hold(self, mark: str) -> bool:
        return mark >= " "

    def json(self, values: Sequence[Fills]) -> list[str]:
        return [msgspec.json.encode(self._lists(row)).decode() for row in values]

    def arrow_type(self, arrow: Any) -> Any:
        fields = [("score", arrow.float32()), ("token", arrow.int32())]
        fields += [("token_str", arrow.string()), ("sequence", arrow.string())]
        return arrow.list_(arrow.list_(arrow.struct(fields)))

    def arrow_array(self, arrow: Any, values: Sequence[Fills]) -> Any:
        return arrow.array([self._lists(row) for row in values], self.arrow_type(arrow))

    def _lists(self, row: Fills) -> list[list[dict[str, Any]]]:
        return [
            [asdict(fill) | {"score": float(str(np.float32(fill.score)))} for fill in mask]
            for mask in row
        ]


def score_texts(scores: Float32Array) -> list[str]:
    """Each score in the fewest digits that read back as the same float32."""
    return [str(score) for score in scores.ravel()]


def shortest(values: NDArray[Any]) -> NDArray[np.float64]:
    """float64 whose digits are few and read back as the same float32 or float16.

    Nine significant digits tell any two float32 apart. n / 10^e with n < 10^9 and e <= 22 is the
    double that is nearest to that decimal, so it is printed as just those digits.
    """
    wide = values.astype(np.float64)
    sizes = np.abs(wide)
    with np.errstate(divide="ignore"):
        places = 8 - np.floor(np.log10(sizes))
    powers = 10.0 ** np.clip(np.where(np.isfinite(places), places, 0), 0, 22)
    few = np.rint(wide * powers) / powers
    return np.where(few.astype(values.dtype) == values, few, wide)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
