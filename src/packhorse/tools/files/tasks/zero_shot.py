"""``packhorse zero-shot``: labels of the user's own for each text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from packhorse import verbs
from packhorse.checkpoint import Checkpoint
from packhorse.request import BoolArray, Float32Array, Sequences, TextOrPair
from packhorse.tools.files.tasks.ranked_labels import RankedLabels
from packhorse.tools.table_files.added_columns import AddedColumn
from packhorse.tools.table_files.columns import Columns

if TYPE_CHECKING:
    from packhorse.loaded import Loaded


@dataclass(frozen=True, slots=True)
class ZeroShotTask:
    """``labels`` in the place {} of ``template``; ``multi_label``: each by itself."""

    text: str
    ranked: RankedLabels
    labels: tuple[str, ...]
    template: str
    multi_label: bool

    @property
    def columns(self) -> Columns:
        names = tuple(self.ranked.names(len(self.labels)))
        return Columns((self.text,), names, ("--text-column",), self.ranked.TOLD_BY)

    @property
    def sequences_each(self) -> int:
        return len(self.labels)

    def identity(self) -> dict[str, Any]:
        own = asdict(self)
        del own["ranked"]
        return {"task": "zero-shot", **own, **self.ranked.identity()}

    def added(self, checkpoint: Checkpoint) -> list[AddedColumn]:
        verbs.zero_shot_hypotheses(checkpoint, self.labels, self.template)
        return self.ranked.columns(self.labels)

    def plan(self, model: Loaded, texts: list[TextOrPair]) -> verbs.Plan[Float32Array]:
        return verbs.zero_shot_matrix(
            model, cast(list[str], texts), self.labels, self.template, self.multi_label
        )

    def values(self, result: Float32Array, checkpoint: Checkpoint) -> list[Any]:
        return self.ranked.values(result, self.labels)

    def truncated(self, sequences: Sequences, rows: int) -> BoolArray:
        cut: BoolArray = np.logical_or.reduce(sequences.truncated.reshape(rows, -1), axis=1)
        return cut
