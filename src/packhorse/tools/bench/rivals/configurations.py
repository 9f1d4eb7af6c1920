"""Who is compared on a CPU: each engine in the ways that are its best, and ours."""

from __future__ import annotations

from packhorse.config import Config, ModelOptions, resolve
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tools.bench.rungs import COMPILER, TRANSFORMERS, Rung
from packhorse.tools.bench.rungs import obstacle as missing

FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"

LIBRARIES = ("onnx", "onnxruntime", "onnxscript", "openvino", "nncf")
"""Distributions of rivals, beyond those that every bench names."""

_EXPORT = (TRANSFORMERS, "onnx")
_ONNX = (*_EXPORT, "onnxruntime")
_OPENVINO = (*_EXPORT, "openvino")


def _each(
    name: str, change: str, program: str, types: tuple[str, ...], needs: tuple[str, ...]
) -> tuple[Rung, ...]:
    """One configuration for each type: NAME-fp32, NAME-bf16, NAME-int8."""
    short = {FLOAT32: "fp32", BFLOAT16: "bf16", INT8: "int8"}
    return tuple(Rung(f"{name}-{short[t]}", change, program, t, needs=needs) for t in types)


RIVALS: tuple[Rung, ...] = (
    Rung(
        "naive",
        "One text at a time, padded to 128 tokens.",
        "naive",
        FLOAT32,
        needs=(TRANSFORMERS,),
    ),
    *_each(
        "transformers",
        "Transformers, sorted by length, dynamic padding, SDPA.",
        "transformers",
        (FLOAT32, BFLOAT16),
        (TRANSFORMERS,),
    ),
    *_each(
        "compile",
        "The same under torch.compile with dynamic shapes.",
        "compile-padded",
        (BFLOAT16,),
        (TRANSFORMERS, COMPILER),
    ),
    *_each(
        "compile-frozen",
        "The same with frozen weights, which are packed for oneDNN.",
        "compile-frozen",
        (FLOAT32, BFLOAT16),
        (TRANSFORMERS, COMPILER),
    ),
    *_each(
        "onnxruntime",
        "ONNX Runtime, fused by its optimizer; int8: dynamic, per channel.",
        "onnxruntime",
        (FLOAT32, INT8),
        _ONNX,
    ),
    *_each(
        "openvino",
        "OpenVINO, throughput hint, one stream of all threads.",
        "openvino",
        (FLOAT32, BFLOAT16, INT8),
        _OPENVINO,
    ),
    *_each(
        "openvino-streams",
        "OpenVINO, throughput hint, a stream for each thread.",
        "openvino-streams",
        (FLOAT32, BFLOAT16, INT8),
        _OPENVINO,
    ),
)

OURS: tuple[Rung, ...] = _each(
    "packhorse", "Encoder.predict_proba.", "encoder", (FLOAT32, BFLOAT16, INT8), ()
)

CONFIGURATIONS = (*RIVALS, *OURS)


def chosen(names: str | None) -> list[Rung]:
    """All, or those whose names are given, separated by commas; "openvino" stands for all of it.

    Raises ConfigError for a name that fits none.
    """
    if names is None:
        return list(CONFIGURATIONS)
    asked = names.split(",")
    for name in asked:
        if not any(_fits(rung, name) for rung in CONFIGURATIONS):
            known = ", ".join(rung.name for rung in CONFIGURATIONS)
            raise ConfigError(f"configuration {name!r} is none, and begins none, of {known}")
    return [rung for rung in CONFIGURATIONS if any(_fits(rung, name) for name in asked)]


def _fits(rung: Rung, name: str) -> bool:
    return rung.name == name or rung.name.startswith(f"{name}-")


def obstacle(rung: Rung) -> str | None:
    """Why a configuration cannot run here; None if it can."""
    lacking = missing(rung)
    if lacking is not None:
        return lacking
    if rung.precision == BFLOAT16 and not detect().native_bfloat16:
        return "this processor does not multiply bfloat16"
    if rung.program == "encoder":
        try:
            resolve(Config(ModelOptions(device="cpu", dtype=rung.precision)), detect())
        except ConfigError as error:
            return f"refused: {error}"
    return None
