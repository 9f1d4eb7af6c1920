"""One run over one file: read, tokenise, predict and write, each beside the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import packhorse
from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.config import Config, resolve
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
from packhorse.tools.table_files.rows import Place, RowBatch, RowReader, RowWriter

if TYPE_CHECKING:
    from packhorse import Encoder

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
        compressed = run.out.endswith(".gz")
        writer = make_writer(
            run.source, reader, run.columns, run.target, checkpoint.labels, compressed
        )
        batch_rows = run.batch or _BATCH_ROWS[config.model.device.partition(":")[0]]
        state = _state(run, _identity(run, config, checkpoint, batch_rows))
        progress = Progress(state.counts.rows + state.counts.skipped, run.quiet)
        stack.callback(progress.close)
        if run.out != STDIN and is_finished(Path(run.out), state):
            progress.note(f"{run.out} was finished by an earlier run")
            forget(Path(run.out))
            return state.counts
        output = _output(run, state)
        stack.callback(output.close)
        sink = _Sink(reader, writer, output, state.counts, progress, _bad_row_log(run, progress))
        if not state.is_new:
            progress.note(f"going on after {run.source.unit} {state.after.number:,}")
            reader.go_to(state.after)
        else:
            output.write(writer.header())
        _score_all(run, config, checkpoint, reader.batches(batch_rows), sink)
        sink.finish()
        progress.close()
        progress.summarise(sink.counts, run.source.name)
        return sink.counts


def _check_paths(run: Run) -> None:
    """Raise ConfigError unless the input is a file and the output can be one beside it."""
    source, out = Path(run.source.path), Path(run.out)
    if run.source.path != STDIN and not source.is_file():
        # Not every input that can be read is a regular file: <(…) is a pipe.
        if not source.exists() or source.is_dir():
            raise ConfigError(f"{source} {'is a folder' if source.is_dir() else 'does not exist'}")
        if run.source.format is Format.PARQUET:
            raise ConfigError(f"{source} is not a regular file, which Parquet must be")
    if run.out == STDIN:
        return
    if out.is_dir():
        raise ConfigError(f"{out} is a folder")
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is not a folder, so {out.name} cannot be written there")
    if run.source.path != STDIN and source.resolve() in map(Path.resolve, files_of(out)):
        raise ConfigError(f"{source} is the input; writing {out} would overwrite it")


def _checkpoint_of(config: Config) -> Checkpoint:
    model = config.model
    return load_checkpoint(
        model.model_id,
        revision=model.revision,
        token=model.hf_token,
        offline=model.offline,
        cache_dir=model.huggingface_hub_cache,
    )


def _identity(run: Run, config: Config, checkpoint: Checkpoint, batch_rows: int) -> dict[str, Any]:
    """Everything that the bytes of the output depend on."""
    if not run.keeps_state:
        return {}
    return {
        "packhorse": packhorse.__version__,
        "input": identity_of_input(Path(run.source.path)),
        "model": identity_of_model(checkpoint),
        "option": {
            "format": [run.source.format, run.source.delimiter, run.source.quoted],
            "output format": run.target,
            "columns": [*run.columns.texts, run.columns.label, run.columns.score],
            "batch": batch_rows,
            "device": config.model.device,
            "dtype": _dtype(config),
            "tokenizer": config.model.tokenizer,
            "max batch tokens": config.engine.max_batch_tokens,
            **asdict(run.scoring),
        },
    }


def _dtype(config: Config) -> str:
    """The type asked for, with what decides it where that is left to a CPU."""
    native = config.model.device == "cpu" and detect().native_bfloat16
    return f"{config.model.dtype}, bfloat16 is native" if native else config.model.dtype


def _state(run: Run, identity: dict[str, Any]) -> RunState:
    """Where to begin: where an interrupted run stopped, or at the start.

    Raises SetupError when an output is there that may not be replaced.
    """
    out = Path(run.out)
    earlier = None
    if run.out != STDIN and run.resume and not run.restart:
        earlier = earlier_state(out, identity)
    if earlier is None and run.out != STDIN and out.exists() and not run.overwrite:
        raise ConfigError(f"{out} exists; replace it with --overwrite, or choose another -o")
    return earlier or RunState(identity)


def _output(run: Run, state: RunState) -> Output:
    if run.out == STDIN:
        return StandardOutput()
    return PartialOutput(Path(run.out), state, run.keeps_state)


def _bad_row_log(run: Run, progress: Progress) -> BadRowLog:
    listed = None if run.out == STDIN else errors_path(Path(run.out))
    return BadRowLog(run.source.unit, progress.tell, listed)


def _score_all(
    run: Run,
    config: Config,
    checkpoint: Checkpoint,
    batches: Iterator[RowBatch],
    sink: _Sink,
) -> None:
    """Load the model and take every batch through it, in order.

    The model runs in this thread; reading, tokenising and writing have their own.
    """
    read = prefetched(batches)
    with closing(read):
        model = _load(config, checkpoint)
        sink.progress.start(f"{checkpoint.model_id} on {model.info['device']}")
        scorer = RowScorer(model, checkpoint, run.scoring)
        try:
            with (
                sink,
                closing(prefetched(scorer.encoded(read))) as encoded,
                Behind(sink.take) as behind,
            ):
                for batch in encoded:
                    behind.put(scorer.score(batch))
        except KeyboardInterrupt:
            # At once: closing would wait for the batch that the model is working on.
            if run.keeps_state:
                sink.progress.tell("what is done is kept: the same command goes on from there")
            raise
        except BaseException:
            model.close()
            raise
        model.close()


def _load(config: Config, checkpoint: Checkpoint) -> Encoder:
    """The library's encoder: importing it imports torch."""
    from packhorse import Encoder

    return Encoder(
        checkpoint.folder,
        device=config.model.device,
        dtype=config.model.dtype,
        tokenizer=config.model.tokenizer,
        threads=int(config.engine.threads),
        max_batch_tokens=int(config.engine.max_batch_tokens),
    )


class _Sink:
    """Takes scored batches to the output, and commits when there is nothing else to write.

    On a CPU that is after each batch. Where batches come faster than the disk
    can confirm them, one commit covers several.
    """

    def __init__(
        self,
        reader: RowReader,
        writer: RowWriter,
        output: Output,
        counts: Counts,
        progress: Progress,
        bad_rows: BadRowLog,
    ) -> None:
        self.counts = counts
        self.progress = progress
        self._reader = reader
        self._writer = writer
        self._output = output
        self._bad_rows = bad_rows
        self._after: Place | None = None

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *exception: object) -> None:
        """Commit what is whole, also after an error or an interruption."""
        self._commit()
        self._bad_rows.close()

    def take(self, scored: Scored, more_waiting: bool) -> None:
        batch = scored.batch
        self._after = None  # should writing fail half-way, nothing is committed any more
        if len(batch):
            self._output.write(self._writer.encode(batch, scored.ranking))
        if batch.bad:
            self._output.write_errors(self._bad_rows.add(batch.bad))
        self.counts.rows += len(batch)
        self.counts.skipped += len(batch.bad)
        self.counts.truncated += scored.truncated
        self._after = batch.after
        if not more_waiting:
            self._commit()
        self.progress.advance(self.counts, self._reader.fraction())

    def finish(self) -> None:
        """Give the output its name."""
        pour = self._writer.pour if isinstance(self._writer, ParquetWriter) else None
        self._output.finish(pour)

    def _commit(self) -> None:
        if self._after is not None:
            self._output.commit(self._after, self.counts)
