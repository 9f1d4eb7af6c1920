"""OpenVINO: float32, bfloat16 or int8, with its throughput hint, in one stream or in several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from packhorse.hardware import detect
from packhorse.request import Float32Array
from packhorse.tools.bench.programs import Place
from packhorse.tools.bench.programs.onnx_export import exported
from packhorse.tools.bench.programs.padded_batches import (
    Batch,
    PaddedProgram,
    calibration_texts,
    padded_batches,
)

_PRECISION = {"float32": "f32", "bfloat16": "bf16"}

_QUANTIZED = "openvino-int8.xml"


class PaddedOpenvino(PaddedProgram):
    """``streams`` batches run at the same time, each with its share of the threads."""

    def __init__(self, place: Place, streams: int) -> None:
        super().__init__(place)
        core = openvino.Core()
        model = self._int8(core) if place.dtype == "int8" else self._model(core)
        # What is not multiplied in int8 is in the half type, where the processor has it.
        wide = "bfloat16" if detect().native_bfloat16 else "float32"
        precision = _PRECISION[wide if place.dtype == "int8" else place.dtype]
        self.compiled = core.compile_model(
            model,
            "CPU",
            {
                "PERFORMANCE_HINT": "THROUGHPUT",
                "INFERENCE_PRECISION_HINT": precision,
                "INFERENCE_NUM_THREADS": place.threads,
                "NUM_STREAMS": streams,
            },
        )
        self._check(precision, streams)
        self.parts.append(f"{streams} streams" if streams > 1 else "1 stream")
        self.queue = openvino.AsyncInferQueue(self.compiled, streams)
        self.queue.set_callback(self._keep)
        self.results: list[Float32Array | None] = []

    def run(self, batches: Sequence[Batch]) -> list[Float32Array]:
        self.results = [None] * len(batches)
        for number, batch in enumerate(batches):
            self.queue.start_async([batch.ids, batch.mask], userdata=number)
        self.queue.wait_all()
        return [result for result in self.results if result is not None]

    def _keep(self, request: Any, number: int) -> None:
        self.results[number] = np.array(request.get_output_tensor(0).data, np.float32)

    def _check(self, precision: str, streams: int) -> None:
        """That the device does what it was asked for."""
        used = self.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        count = self.compiled.get_property("NUM_STREAMS")
        if used != precision or count != streams:
            raise RuntimeError(
                f"OpenVINO computes in {used} and {count} streams, not in {precision} and {streams}"
            )

    def _model(self, core: openvino.Core) -> openvino.Model:
        assert self.place.scratch is not None
        return core.read_model(exported(Path(self.place.folder), Path(self.place.scratch)))

    def _int8(self, core: openvino.Core) -> openvino.Model:
        """Weights and activations, calibrated on texts that are not measured; written once."""
        assert self.place.scratch is not None
        path = Path(self.place.scratch) / _QUANTIZED
        texts = calibration_texts(self.place)
        self.parts.append(
            f"{'nncf' if find_spec('nncf') else 'ONNX Runtime'}, calibrated on {len(texts)} texts"
        )
        if not path.exists():
            encoded = [each.ids for each in self.tokenizer.encode_batch_fast(texts)]
            batches = list(padded_batches(encoded, 1, self.pad))
            if find_spec("nncf"):
                model = _by_nncf(self._model(core), batches)
            else:
                assert self.place.scratch is not None
                source = exported(Path(self.place.folder), Path(self.place.scratch))
                model = core.read_model(_by_onnxruntime(source, batches))
            openvino.save_model(model, path, compress_to_fp16=False)
        return core.read_model(path)


def _by_nncf(model: openvino.Model, batches: list[Batch]) -> openvino.Model:
    """OpenVINO's own way: post-training quantization for transformers."""
    import nncf

    dataset = nncf.Dataset([{"input_ids": b.ids, "attention_mask": b.mask} for b in batches])
    quantized: openvino.Model = nncf.quantize(
        model, dataset, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches)
    )
    return quantized


def _by_onnxruntime(source: Path, batches: list[Batch]) -> Path:
    """ONNX Runtime's static quantization, which OpenVINO reads as its own."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches: Iterator[Batch] = iter(batches)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"input_ids": batch.ids, "attention_mask": batch.mask}

    target = source.with_name("qdq.onnx")
    quantize_static(
        source,
        target,
        Reader(),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
    )
    return target
