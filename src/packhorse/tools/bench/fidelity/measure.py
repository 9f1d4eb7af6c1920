"""Every line, one after the other: their answers, ours, and how far they are apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers

from packhorse import Encoder
from packhorse.checkpoint import DEMO_MODEL, load_checkpoint
from packhorse.errors import ConfigError, PackhorseError
from packhorse.request import Float32Array, Int32Array, TextOrPair
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tools.bench.climb import say
from packhorse.tools.bench.fidelity.checkpoints import write_checkpoint
from packhorse.tools.bench.fidelity.faults import FAULTS, Fault
from packhorse.tools.bench.fidelity.lines import Errors, Line, Planted, verdict
from packhorse.tools.bench.fidelity.subjects import PROBLEMS, Subject, subjects
from packhorse.tools.bench.fidelity.transformers_side import Rows, answers, tokenised
from packhorse.tools.bench.workloads import distinct_reviews

LONGEST = 40
"""Tokens in the longest text; a pair has up to twice as many."""

BATCH_TOKENS = 1024
"""Several texts a batch and many batches, yet few graphs to capture on a GPU."""

TYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "float16", "bfloat16")}

_FAULTY = "bert"
"""The family that faults are planted in."""


@dataclass(slots=True)
class Bench:
    """What the lines share: texts, where checkpoints are kept, the device, and what is kept.

    folders  by family and ``Problem.checkpoint``
    batches  Transformers' tokens of all inputs, by family and whether they are pairs
    """

    texts: list[str]
    scratch: Path
    device: str
    threads: int
    folders: dict[tuple[str, str], Path] = field(default_factory=dict)
    batches: dict[tuple[str, bool], list[Rows]] = field(default_factory=dict)

    def inputs(self, pairs: bool) -> list[TextOrPair]:
        """The texts, or each with the next one."""
        if not pairs:
            return list(self.texts)
        return list(zip(self.texts, self.texts[1:] + self.texts[:1], strict=True))

    def folder(self, subject: Subject) -> Path:
        key = (subject.family, subject.problem.checkpoint)
        if key not in self.folders:
            target = self.scratch / "-".join(key)
            self.folders[key] = write_checkpoint(subject, target)
        return self.folders[key]

    def theirs(self, subject: Subject, dtype: str) -> Float32Array:
        key = (subject.family, subject.problem.pairs)
        folder = self.folder(subject)
        if key not in self.batches:
            self.batches[key] = tokenised(folder, self.inputs(subject.problem.pairs))
        return answers(subject, folder, self.batches[key], self.device, dtype)

    def ours(self, subject: Subject, dtype: str, fault: Fault | None = None) -> Float32Array:
        """From strings, by the public library; with a planted fault if one is given."""
        folder = self.folder(subject)
        if fault is not None and fault.folder is not None:
            folder = fault.folder(folder, self.scratch / fault.name.replace(" ", "-"))
        with Encoder(
            folder,
            device=self.device,
            dtype=dtype,
            task=subject.problem.task,
            threads=self.threads,
            max_batch_tokens=BATCH_TOKENS,
        ) as encoder:
            sequences = encoder.encode(self.inputs(subject.problem.pairs))
            if fault is not None and fault.sequences is not None:
                sequences = fault.sequences(sequences)
            return subject.problem.ours(encoder, sequences)


def measure(
    chosen: Sequence[Subject], count: int, reviews: Path, device: str, threads: int, workers: int
) -> tuple[list[Line], list[Planted]]:
    """Every line of the subjects on one device, and the planted faults there.

    ``workers`` families are measured at a time, each in a process of its own.
    Raises ConfigError when there are not so many texts.
    """
    texts = some_texts(count, reviews)
    families = [
        (family, [subject.problem.name for subject in group])
        for family, group in groupby(chosen, key=lambda subject: subject.family)
    ]
    of_family = partial(_of_family, texts=texts, device=device, threads=threads)
    if workers == 1:
        lines = [of_family(family) for family in families]
    else:
        spawned = get_context("spawn")
        with ProcessPoolExecutor(workers, spawned, initializer=quiet, initargs=(threads,)) as pool:
            lines = list(pool.map(of_family, families))
    with _bench(texts, device, threads) as bench:
        return list(chain.from_iterable(lines)), [_planted(bench, fault) for fault in FAULTS]


def quiet(threads: int) -> None:
    """Transformers says little, and takes as many threads as we do."""
    logs: Any = transformers.utils.logging
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    torch.set_num_threads(threads)  # for Transformers; the engine has threads of its own


@contextmanager
def _bench(texts: list[str], device: str, threads: int) -> Iterator[Bench]:
    with TemporaryDirectory(prefix="packhorse-fidelity-") as folder:
        yield Bench(texts, Path(folder), device, threads)


def _of_family(
    named: tuple[str, list[str]], texts: list[str], device: str, threads: int
) -> list[Line]:
    """The lines of a family and its problems, by name: they go to another process."""
    family, problems = named
    lines = []
    with _bench(texts, device, threads) as bench:
        for subject in subjects([family], problems):
            started = time.monotonic()
            lines += _lines(bench, subject)
            name = f"{subject.family}, {subject.problem.name}"
            say(f"{device}: {name}: {time.monotonic() - started:.1f} s")
    return lines


def some_texts(count: int, reviews: Path) -> list[str]:
    """So many distinct reviews of at most LONGEST tokens, without unknown ones.

    An unknown token has the id 1 here, from which MPNet counts positions.
    Raises ConfigError when there are not so many.
    """
    tokenizer = Tokenizer.load(load_checkpoint(DEMO_MODEL))
    unknown = tokenizer.library.token_to_id("[UNK]")

    def lengths(texts: Sequence[str]) -> Int32Array:
        return tokenizer.encode(list(texts)).lengths

    texts = distinct_reviews(lengths, reviews)
    sequences = tokenizer.encode(texts)
    strange = np.add.reduceat(sequences.input_ids == unknown, sequences.cu_seqlens[:-1]) > 0
    fits = (sequences.lengths <= LONGEST) & ~strange
    chosen = [text for text, fit in zip(texts, fits.tolist(), strict=True) if fit][:count]
    if len(chosen) < count:
        raise ConfigError(f"{reviews} holds {len(chosen)} texts that fit, not {count}")
    return chosen


def _lines(bench: Bench, subject: Subject) -> list[Line]:
    """One line a type of the device."""
    types = TYPES[bench.device.partition(":")[0]]
    reference: list[Float32Array] = []

    def expected() -> Float32Array:
        if not reference:
            reference.append(bench.theirs(subject, "float32"))
        return reference[0]

    return [_line(bench, subject, dtype, expected) for dtype in types]


def _line(bench: Bench, subject: Subject, dtype: str, expected: Callable[[], Float32Array]) -> Line:
    problem = subject.problem
    named = (problem.task, subject.family, problem.name, bench.device, dtype, len(bench.texts))
    try:
        ours = Errors.of(bench.ours(subject, dtype), expected())
        theirs = None
        if dtype != "float32":
            theirs = Errors.of(bench.theirs(subject, dtype), expected())
    except Exception as error:  # the other lines are still worth having
        return Line(*named, fault=f"{type(error).__name__}: {error}")
    return Line(
        *named,
        relative=_number(ours.relative),
        rms=_number(ours.rms),
        largest=_number(ours.largest),
        their_rms=None if theirs is None else theirs.rms,
        their_largest=None if theirs is None else theirs.largest,
        fault=verdict(ours, theirs),
    )


def _planted(bench: Bench, fault: Fault) -> Planted:
    """What float32's check says with this fault in our side."""
    problem = next(problem for problem in PROBLEMS if problem.pairs == fault.pairs)
    subject = Subject(_FAULTY, problem)
    reference = bench.theirs(subject, "float32")
    try:
        errors = Errors.of(bench.ours(subject, "float32", fault), reference)
    except PackhorseError as error:
        return Planted(fault.name, bench.device, None, str(error))
    return Planted(fault.name, bench.device, _number(errors.relative), verdict(errors, None))


def _number(value: float) -> float | None:
    """None for NaN and infinity, which JSON has not."""
    return value if np.isfinite(value) else None
