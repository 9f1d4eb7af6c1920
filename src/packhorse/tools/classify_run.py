"""One run over one file: read, tokenise, predict and write, each beside the others."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import packhorse
from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.config import AUTO, Config, resolve
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tools.bad_row_log import BadRowLog
from packhorse.tools.partial_output import (
    Output,
    PartialOutput,
    StandardOutput,
    earlier_state,
    errors_path,
    files_of,
    forget,
    is_finished,
)
from packhorse.tools.prefetch import Behind, prefetched
from packhorse.tools.progress import Progress
from packhorse.tools.resume_state import Counts, RunState, identity_of_input, identity_of_model
from packhorse.tools.row_scores import RowScorer, Scored, Scoring
from packhorse.tools.table_files.formats import Format
from packhorse.tools.table_files.lines import STDIN
from packhorse.tools.table_files.opening import Columns, Input, make_writer, open_reader
from packhorse.tools.table_files.parquet_rows import ParquetWriter
from packhorse.tools.table_files.rows import Place, RowReader, RowWriter

_BATCH_ROWS = {"cpu": 512, "cuda": 8192}
"""Rows at once: seconds of a CPU's work, tens of milliseconds of a GPU's."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line asks for.

    scoring    how texts become labels
    batch      rows at once; None for what suits the device
    resume     keep a state while running, and go on from one that is there
    restart    drop what an interrupted run left
    overwrite  replace an output that is there
    quiet      no bar and no summary
    """

    source: Input
    out: str
    target: Format
    columns: Columns
    scoring: Scoring
    batch: int | None = None
    resume: bool = True
    restart: bool = False
    overwrite: bool = False
    quiet: bool = False

    @property
    def keeps_state(self) -> bool:
        """Standard input cannot be read again, standard output not be cut off."""
        return self.resume and STDIN not in (self.source.path, self.out)


def classify_file(run: Run, config: Config) -> Counts:
    """Classify every row of the input. Returns how many rows were written and skipped.

    Raises SetupError before any row is written when something does not fit,
    and EngineError when the model fails as a whole. What was committed by
    then, or until the process is killed, another run goes on from.
    """
    config = resolve(config, detect())
    _check_paths(run)
    with ExitStack() as stack:
        reader = open_reader(run.source, run.columns, run.target)
        stack.callback(reader.close)
        checkpoint = _checkpoint_of(config)
        writer = make_writer(run.source, reader, run.columns, run.target, checkpoint.labels)
        size = run.batch or _BATCH_ROWS[config.model.device.partition(":")[0]]
        state = _state(run, _identity(run, config, checkpoint, size))
        progress = Progress(state.counts.rows + state.counts.skipped, run.quiet)
        stack.callback(progress.close)
        if is_finished(Path(run.out), state):
            progress.note(f"{run.out} was finished by an earlier run")
            forget(Path(run.out))
            return state.counts
        output = _output(run, state)
        stack.callback(output.close)
        sink = _Sink(reader, writer, output, state, progress, _bad_row_log(run, progress))
        sink.begin()
        _score_all(run, config, checkpoint, reader.batches(size), sink)
        sink.finish()
    progress.summarise(sink.counts, run.source.name)
    return sink.counts


def _check_paths(run: Run) -> None:
    """Raise ConfigError unless the input is there and the output may be written."""
    if run.source.path != STDIN and not Path(run.source.path).exists():
        raise ConfigError(f"{run.source.path} does not exist")
    if run.source.path != STDIN and Path(run.source.path).is_dir():
        raise ConfigError(f"{run.source.path} is a folder")
    if run.out == STDIN:
        return
    out = Path(run.out)
    if out.is_dir() or not out.parent.is_dir():
        fault = "is a folder" if out.is_dir() else f"cannot be made: {out.parent} is no folder"
        raise ConfigError(f"{out} {fault}")
    source = Path(run.source.path).resolve()
    if run.source.path != STDIN and source in (path.resolve() for path in files_of(out)):
        raise ConfigError(f"{run.source.path} is the input, and would be overwritten for {out}")
    ...
