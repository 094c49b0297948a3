"""Accelerators that a roofline is drawn for: public figures, and which part of them decoding reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.records.target import DType


@dataclass(frozen=True, kw_only=True)
class Device:
    """``bandwidth_gb_s`` and ``peak_tflops`` (dense, by dtype) are the datasheet's.

    ``memory_efficiency`` and ``compute_efficiency`` are the shares of both that decoding reaches. A pass over one
    position multiplies a matrix by a vector, over more by a matrix, which may read its weights ``wide_factor`` times
    slower; with ``packed``, rows of different width are laid end to end, else padded to the widest. A forward takes
    ``launch_ms`` and ``layer_ms`` per layer beside its work: launches, and waiting between kernels. ``memory_gb`` None
    is not known.
    """

    name: str
    bandwidth_gb_s: float
    peak_tflops: Mapping[DType, float]
    memory_efficiency: float
    compute_efficiency: float
    wide_factor: float = 1.0
    launch_ms: float
    layer_ms: float
    memory_gb: float | None = None
    packed: bool = False

    @property
    def bytes_per_ms(self) -> float:
        return self.bandwidth_gb_s * self.memory_efficiency * 1e6

    def flops_per_ms(self, dtype: DType) -> float:
        return self.peak_tflops[dtype] * self.compute_efficiency * 1e9


def _gpu(name: str, bandwidth_gb_s: float, half_tflops: float, float32_tflops: float, memory_gb: float) -> Device:
    """A GPU with the shares that are assumed for every one of them, of a datasheet's figures that no kernel reaches.

    .8 of the bandwidth: the project's own floor for a plain step is .75 of copy bandwidth (``tau0_c1``), which itself
    lies below the datasheet's. .6 of the dense peak: few rows fill no tile of a matrix product. .1 ms a forward and
    .01 ms a layer: recorded graphs, ten kernels a layer, a microsecond between them. None of it is measured:
    ``python -m jobs.benchmark gpu`` measures τ0, verification and draft steps on yours.
    """
    return Device(
        name=name,
        bandwidth_gb_s=bandwidth_gb_s,
        peak_tflops={"bfloat16": half_tflops, "float16": half_tflops, "float32": float32_tflops},
        memory_efficiency=0.8,
        compute_efficiency=0.6,
        launch_ms=0.1,
        layer_ms=0.01,
        memory_gb=memory_gb,
    )


# Tensor-core figures of the datasheets from Hopper and Ada on are "with sparsity": dense is half of them. float32 is
# the plain one, not TF32, which torch leaves off unless told otherwise.
DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        # NVIDIA H100 Tensor Core GPU datasheet, column H100 SXM: 80 GB; 3.35 TB/s; BF16 1,979 (sparse); FP32 67.
        _gpu("h100", 3350, 989.5, 67, 80),
        # NVIDIA H200 Tensor Core GPU datasheet, column H200 SXM: 141 GB; 4.8 TB/s; BF16 1,979 (sparse); FP32 67.
        _gpu("h200", 4800, 989.5, 67, 141),
        # NVIDIA A100 Tensor Core GPU datasheet, column A100 80GB SXM: 2,039 GB/s; BF16 312 | 624 (sparse); FP32 19.5.
        _gpu("a100", 2039, 312, 19.5, 80),
        # NVIDIA L4 Tensor Core GPU datasheet: 24 GB; 300 GB/s; BF16 242 (sparse); FP32 30.3.
        _gpu("l4", 300, 121, 30.3, 24),
        # Two cores of an AMD EPYC with AVX-512, measured by this project, not taken from a datasheet, so that nothing
        # is left to an efficiency: a plain step of SmolLM2-135M in fp32 (538 MB) takes about 21 ms, of which 15.5 go
        # into weights; a forward over 5 positions 30.3 ms and over 9 positions 31.7 ms (README, forward_q5 and q9).
        # So weights are read 1.6 times slower for several positions, and from the ninth on arithmetic is taken to bind.
        # Only fp32 was measured; lower precision is taken to compute no faster.
        Device(
            name="cpu",
            bandwidth_gb_s=34.8,
            peak_tflops={"bfloat16": 0.093, "float16": 0.093, "float32": 0.093},
            memory_efficiency=1.0,
            compute_efficiency=1.0,
            wide_factor=1.6,
            launch_ms=0.4,
            layer_ms=0.17,
            packed=True,
        ),
    )
}
