"""Names of columns: those that are read, those that are added, and the flags that change them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a file matter.

    texts    of the text, or of the two texts of a pair
    added    as far as they are known before the model is; a row must not have them already
    texts_told_by   the flags that name them
    added_told_by   the flags that give them other names, for messages
    """

    texts: tuple[str, ...]
    added: tuple[str, ...]
    texts_told_by: tuple[str, ...]
    added_told_by: str

    def taken(self, file: str, column: str) -> str:
        """The message for a column that the input already has."""
        return (
            f"{file} already has a column {column!r}; choose other names with {self.added_told_by}"
        )

    @property
    def remedy(self) -> str:
        """For messages: how to say which columns are read."""
        return f"with {' or '.join(self.texts_told_by)}"
