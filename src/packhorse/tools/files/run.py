"""One run over one file: read, tokenise, ask the model and write, each beside the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import packhorse
from packhorse.checkpoint import Checkpoint
from packhorse.config import Config, resolve
from packhorse.configured import configured_checkpoint
from packhorse.errors import ConfigError, RequestError
from packhorse.hardware import detect
from packhorse.tools.files import model as models
from packhorse.tools.files.bad_row_log import BadRowLog
from packhorse.tools.files.partial_output import (
    Output,
    PartialOutput,
    StandardOutput,
    earlier_state,
    errors_path,
    files_of,
    forget,
    has_state,
    is_finished,
)
from packhorse.tools.files.prefetch import Behind, Prefetched
from packhorse.tools.files.progress import Progress
from packhorse.tools.files.resume_state import (
    Counts,
    RunState,
    identity_of_input,
    identity_of_model,
)
from packhorse.tools.files.row_answers import RowAnswers
from packhorse.tools.files.row_sink import RowSink
from packhorse.tools.files.row_task import RowTask
from packhorse.tools.table_files.added_columns import AddedColumn
from packhorse.tools.table_files.formats import Format
from packhorse.tools.table_files.lines import STDIN
from packhorse.tools.table_files.opening import Input, make_writer, open_reader
from packhorse.tools.table_files.rows import RowBatch

_BATCH_SEQUENCES = {"cpu": 512, "cuda": 8192}
"""Sequences at once: seconds of a CPU's work, tens of milliseconds of a GPU's."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line asks for.

    task       what becomes of a row
    batch      rows at once; None for what suits the device
    resume     keep a state while running, and go on from one that is there
    restart    drop what an interrupted run left
    overwrite  replace an output that is there
    quiet      no bar and no summary
    """

    source: Input
    out: str
    target: Format
    task: RowTask
    batch: int | None = None
    resume: bool = True
    restart: bool = False
    overwrite: bool = False
    quiet: bool = False

    @property
    def keeps_state(self) -> bool:
        """A stream cannot be read again, and standard output not be cut off."""
        return self.resume and self.out != STDIN and Path(self.source.path).is_file()

    @property
    def goes_on(self) -> bool:
        """Whether what an interrupted run left counts."""
        return self.resume and not self.restart and self.out != STDIN


def run_file(run: Run, config: Config) -> Counts:
    """Take every row of the input through the model. Returns how many were written and skipped.

    Raises SetupError before any row is written when something does not fit,
    and EngineError when the model fails as a whole. What was committed by
    then, or until the process is killed, another run goes on from.
    """
    config = resolve(config, detect())
    _check_paths(run)
    with ExitStack() as stack:
        reader = open_reader(run.source, run.task.columns, run.target)
        stack.callback(reader.close)
        checkpoint = configured_checkpoint(config)
        compressed = run.out.endswith(".gz")
        added = _added(run.task, checkpoint)
        writer = make_writer(run.source, reader, run.task.columns, run.target, added, compressed)
        batch_rows = run.batch or _batch_rows(run.task, config)
        state = _state(run, _identity(run, config, checkpoint, batch_rows))
        progress = Progress(state.counts.rows + state.counts.skipped, run.quiet)
        stack.callback(progress.close)
        if run.out != STDIN and is_finished(Path(run.out), state):
            progress.note(f"{run.out} was finished by an earlier run")
            forget(Path(run.out))
            return state.counts
        output = _output(run, state)
        stack.callback(output.close)
        sink = RowSink(reader, writer, output, state.counts, progress, _bad_row_log(run, progress))
        if state.is_new:
            sink.begin()
        else:
            progress.note(f"going on after {run.source.unit} {state.after.number:,}")
            reader.go_to(state.after)
        _answer_all(run, config, checkpoint, reader.batches(batch_rows), sink, progress)
        sink.finish()
        progress.close()
        progress.summarise(sink.counts, run.source.name)
        return sink.counts


def _check_paths(run: Run) -> None:
    """Raise ConfigError unless the input can be read and the output may be written."""
    source, out = Path(run.source.path), Path(run.out)
    if run.source.path != STDIN:
        if not source.exists() or source.is_dir():
            raise ConfigError(f"{source} {'is a folder' if source.is_dir() else 'does not exist'}")
        if not source.is_file() and run.source.format is Format.PARQUET:
            raise ConfigError(f"{source} is not a regular file, which Parquet must be")
    if run.out == STDIN:
        return
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is not a folder, so {out.name} cannot be written there")
    if out.exists() and not out.is_file():
        raise ConfigError(f"{out} is not a regular file; -o - writes to standard output")
    if run.source.path != STDIN and source.resolve() in map(Path.resolve, files_of(out)):
        raise ConfigError(f"{source} is the input; writing {out} would overwrite it")
    if out.exists() and not run.overwrite and not (run.goes_on and has_state(out)):
        raise ConfigError(f"{out} exists; replace it with --overwrite, or choose another -o")


def _added(task: RowTask, checkpoint: Checkpoint) -> list[AddedColumn]:
    """The columns that rows get. Raises ConfigError where the model is not for that."""
    try:
        return task.added(checkpoint)
    except RequestError as error:
        raise ConfigError(str(error)) from None


def _batch_rows(task: RowTask, config: Config) -> int:
    """Rows at once where the user leaves it open."""
    device = config.model.device.partition(":")[0]
    return max(1, _BATCH_SEQUENCES[device] // task.sequences_each)


def _identity(run: Run, config: Config, checkpoint: Checkpoint, batch_rows: int) -> dict[str, Any]:
    """Everything that the bytes of the output depend on."""
    if not run.keeps_state:
        return {}
    identity = {
        "packhorse": packhorse.__version__,
        "input": identity_of_input(Path(run.source.path)),
        "model": identity_of_model(checkpoint),
        "option": {
            "format": [run.source.format, run.source.delimiter, run.source.quoted],
            "output format": run.target,
            "batch": batch_rows,
            "device": config.model.device,
            "dtype": _dtype(config),
            "threads": _threads(config),
            "tokenizer": config.model.tokenizer,
            "max batch tokens": config.engine.max_batch_tokens,
            "without": sorted(config.engine.without),
            **run.task.identity(),
        },
    }
    # As it will be read: lists for tuples.
    known: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(identity))
    return known


def _dtype(config: Config) -> str:
    """The type asked for, with what decides it where that is left to a CPU."""
    native = config.model.device == "cpu" and detect().native_bfloat16
    return f"{config.model.dtype}, bfloat16 is native" if native else config.model.dtype


def _threads(config: Config) -> int | str | None:
    """On a CPU: the shapes of products depend on them, and so do the last bits of scores."""
    return config.engine.threads if config.model.device == "cpu" else None


def _state(run: Run, identity: dict[str, Any]) -> RunState:
    """Where to begin: where an interrupted run stopped, or at the start.

    Raises SetupError when that run was another one.
    """
    earlier = earlier_state(Path(run.out), identity) if run.goes_on else None
    return earlier or RunState(identity)


def _output(run: Run, state: RunState) -> Output:
    if run.out == STDIN:
        return StandardOutput()
    return PartialOutput(Path(run.out), state, run.keeps_state)


def _bad_row_log(run: Run, progress: Progress) -> BadRowLog:
    listed = None if run.out == STDIN else errors_path(Path(run.out))
    return BadRowLog(run.source.unit, progress.tell, listed)


def _answer_all(
    run: Run,
    config: Config,
    checkpoint: Checkpoint,
    batches: Iterator[RowBatch],
    sink: RowSink,
    progress: Progress,
) -> None:
    """Load the model and take every batch through it, in order.

    The model runs in this thread; reading, tokenising and writing have their own.
    """
    with closing(Prefetched(batches)) as read:
        model = models.load(config, checkpoint)
        progress.start(f"{checkpoint.model_id} on {_device_shown(config)}")
        answers = RowAnswers(model, run.task)
        encoded = Prefetched(answers.encoded(read))
        try:
            with sink, Behind(sink.take) as behind:
                for batch in encoded:
                    behind.put(answers.answered(batch))
        except KeyboardInterrupt:
            # At once: closing would wait for the batch that the model is working on.
            if run.keeps_state:
                progress.tell("what is done is kept: the same command goes on from there")
            raise
        except BaseException:
            model.engine.close()
            raise
        finally:
            read.close()  # first, since the other waits for it
            encoded.close()
        model.engine.close()


def _device_shown(config: Config) -> str:
    """The device in use, and why it is not a GPU if a driver is there and fails."""
    fault = detect().gpu_fault if config.model.device == "cpu" else None
    return f"{config.model.device} (no GPU: {fault})" if fault else config.model.device
