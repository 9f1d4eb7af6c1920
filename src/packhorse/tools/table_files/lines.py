"""Lines of a file or stream as bytes, with their numbers, however long they are."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections import deque
from typing import BinaryIO

from packhorse.errors import SetupError
from packhorse.tools.table_files.rows import BadRowError, Place

MAX_LINE_BYTES = 8_000_000
"""A longer line, or CSV record of several lines, is a bad row: memory stays bounded."""

STDIN = "-"
_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_SKIPPED_AT_ONCE = 1 << 20


class LongLine:
    """Stands for a line over MAX_LINE_BYTES, whose bytes were dropped."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


Line = bytes | LongLine


class LineReader:
    """Reads physical lines, ended by a line feed, from a path or standard input.

    ``place`` is behind the last line that was read and not given back.
    Decompresses where the name ends in .gz.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._raw = _open(path)
        about = os.fstat(self._raw.fileno())
        self._is_file = path != STDIN and stat.S_ISREG(about.st_mode)
        self._size = about.st_size if self._is_file else 0
        self._stream = _decompressed(self._raw) if path.endswith(".gz") else self._raw
        self._returned: deque[Line] = deque()
        self._offset, self._number = 0, 0

    @property
    def place(self) -> Place:
        return Place(self._offset, self._number)

    @property
    def number(self) -> int:
        """Of the last line that was read, from 1."""
        return self._number

    def next_line(self) -> Line | None:
        """The next line with its line feed, or None at the end.

        Raises SetupError when the file cannot be read any further.
        """
        if self._returned:
            line = self._returned.popleft()
        else:
            try:
                line = self._stream.readline(MAX_LINE_BYTES + 1)
                if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                    line = self._skip_rest(len(line))
            except (OSError, EOFError, zlib.error) as error:
                reason = f"{self._path} cannot be read after line {self._number}: {error}"
                raise SetupError(reason) from None
            if not line:
                return None
        if not self._offset:
            self._offset = len(line)
            self._number = 1
            return _without_bom(line, self._path)
        self._offset += len(line)
        self._number += 1
        return line

    def give_back(self, lines: list[Line]) -> None:
        """Undo the reading of the last lines. The first line of the file cannot be given back."""
        self._returned.extendleft(reversed(lines))
        self._offset -= sum(map(len, lines))
        self._number -= len(lines)

    def go_to(self, place: Place) -> None:
        """Read on from the place of an earlier reader of the same file."""
        self._stream.seek(place.offset)
        self._returned.clear()
        self._offset, self._number = place.offset, place.number

    def fraction(self) -> float | None:
        """How much of the file has been read; of the compressed bytes if it is compressed."""
        if not self._size:
            return None
        at = self._raw.tell() if self._stream is not self._raw else self._offset
        return min(1.0, at / self._size)

    def close(self) -> None:
        if self._is_file:  # closing a stream waits for a thread that reads it
            self._stream.close()
            self._raw.close()

    def _skip_rest(self, length: int) -> LongLine:
        while part := self._stream.readline(_SKIPPED_AT_ONCE):
            length += len(part)
            if part.endswith(b"\n"):
                break
        return LongLine(length)


def _open(path: str) -> BinaryIO:
    # Not sys.stdin: the interpreter locks it at exit, and hangs on a thread that waits in it.
    return open(0, "rb", closefd=False) if path == STDIN else open(path, "rb")


def _decompressed(raw: BinaryIO) -> BinaryIO:
    # Buffered again: GzipFile.readline is written in Python.
    return io.BufferedReader(gzip.GzipFile(fileobj=raw, mode="rb"), 1 << 16)


def _without_bom(line: Line, path: str) -> Line:
    if isinstance(line, LongLine):
        return line
    if line.startswith(_UTF16_BOMS):
        raise SetupError(f"{path} is UTF-16; convert it to UTF-8 first")
    return line.removeprefix(_UTF8_BOM)


def checked(line: Line) -> bytes:
    """The line without its end.

    Raises BadRowError for a line that is too long or not UTF-8.
    """
    if isinstance(line, LongLine):
        raise BadRowError(f"the line is longer than {MAX_LINE_BYTES:,} bytes")
    if not line.isascii():
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRowError(f"invalid UTF-8 at byte {error.start + 1} of the line") from None
    return line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")
