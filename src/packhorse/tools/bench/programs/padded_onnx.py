"""ONNX Runtime: float32 with its transformers' fusions, or int8 (dynamic, per channel) on top."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnxruntime
from onnx import TensorProto

from packhorse.hardware import detect
from packhorse.request import Float32Array
from packhorse.tools.bench.programs import Place
from packhorse.tools.bench.programs.onnx_export import optimized
from packhorse.tools.bench.programs.padded_batches import Batch, PaddedProgram

_VNNI = {"avx512_vnni", "avx_vnni"}


class PaddedOnnx(PaddedProgram):
    """One session with all threads."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        assert place.scratch is not None
        path, fused = optimized(Path(place.folder), Path(place.scratch))
        self.parts.append(fused)
        if place.dtype == "int8":
            path = self._quantized(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = place.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def run(self, batches: Sequence[Batch]) -> list[Float32Array]:
        return [
            self.session.run(["logits"], {"input_ids": each.ids, "attention_mask": each.mask})[0]
            for each in batches
        ]

    def _quantized(self, path: Path) -> Path:
        """Weights in 8 bits, or in 7 where a processor without VNNI would saturate sums."""
        from onnxruntime.quantization import QuantType, quantize_dynamic

        saturates = not _VNNI & detect().cpu_features
        target = path.with_name("int8.onnx")
        quantize_dynamic(
            path,
            target,
            per_channel=True,
            reduce_range=saturates,
            weight_type=QuantType.QInt8,
            # Of outputs of fused operators, whose types ONNX itself cannot infer.
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
        self.parts.append("weights in 7 bits (no VNNI)" if saturates else "weights in 8 bits")
        return target
