"""From flags to the columns of labels and scores."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packhorse.tools.files.tasks.ranked_labels import RankedLabels


def ranked_labels(arguments: argparse.Namespace, has_lists: bool) -> RankedLabels:
    """What --top-k, --prefix and the names of the columns say. Raises ConfigError."""
    from packhorse.tools.files.tasks.ranked_labels import RankedLabels

    plural = "s" if has_lists and arguments.top_k != 1 else ""
    return RankedLabels(
        label=arguments.prefix + (arguments.label_column or f"label{plural}"),
        score=arguments.prefix + (arguments.score_column or f"score{plural}"),
        top_k=arguments.top_k,
        in_lists=has_lists,
    )
