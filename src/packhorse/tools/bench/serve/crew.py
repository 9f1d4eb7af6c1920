"""The load processes, started together and told to begin at one moment."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from time import perf_counter, sleep

from packhorse.errors import ConfigError, PackhorseError
from packhorse.tools.bench.serve.generator import Share, serve_parent
from packhorse.tools.bench.serve.plan import Plan

HEAD_START = 0.1
"""Seconds from the word to the first request, so that every process has heard it."""


class GeneratorError(PackhorseError):
    """A load process ended before it had reported."""


def run_load(
    plan: Plan,
    at_begin: Callable[[], None] = lambda: None,
    at_end: Callable[[], None] = lambda: None,
) -> tuple[list[Share], float]:
    """Put the load on the target.

    Returns what each process has to report, and the moment when the warm-up ended.

    ``at_begin`` and ``at_end`` are called when measuring begins (after the
    warm-up) and ends. Raises ConfigError when the target does not answer,
    GeneratorError when a load process ended early.
    """
    context = multiprocessing.get_context("spawn")
    pipes: list[Pipe] = []
    processes: list[BaseProcess] = []
    try:
        for number in range(plan.processes):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(
                target=serve_parent, args=(number, theirs), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _send(pipe, plan)  # as an argument it would block for ever when the process is dead
        for pipe in pipes:
            _receive(pipe)
        start = perf_counter() + HEAD_START
        for pipe in pipes:
            _send(pipe, start)
        _call_at(start + plan.warm_up, at_begin)
        _call_at(start + plan.warm_up + plan.duration, at_end)
        shares = [_receive(pipe) for pipe in pipes]
        return [share for share in shares if share is not None], start + plan.warm_up
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.terminate()
            process.join()


def _call_at(moment: float, callback: Callable[[], None]) -> None:
    sleep(max(0.0, moment - perf_counter()))
    callback()


def _send(pipe: Pipe, what: Plan | float) -> None:
    """Raises GeneratorError."""
    try:
        pipe.send(what)
    except OSError:
        raise GeneratorError("a load process ended before it was told what to do") from None


def _receive(pipe: Pipe) -> Share | None:
    """Its report, or None when it is ready. Raises ConfigError or GeneratorError."""
    try:
        answer: Share | ConfigError | None = pipe.recv()
    except (EOFError, OSError):
        raise GeneratorError("a load process ended before it had reported") from None
    if isinstance(answer, ConfigError):
        raise answer
    return answer
