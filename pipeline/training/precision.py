"""Which type this machine multiplies fastest in."""

from __future__ import annotations

import time

import torch

from pipeline.records.target import DType

_ROWS, _IN, _OUT = 256, 576, 1536
_GAIN = 1.3
"""bfloat16 must be this much faster: it is less precise."""


def fastest(device: torch.device) -> DType:
    """bfloat16 on a GPU; on a CPU by trial, since processors differ tenfold in it."""
    if device.type != "cpu":
        return "bfloat16"
    return "bfloat16" if _seconds(torch.float32) > _GAIN * _seconds(torch.bfloat16) else "float32"


def _seconds(dtype: torch.dtype) -> float:
    rows, weight = torch.ones(_ROWS, _IN, dtype=dtype), torch.ones(_OUT, _IN, dtype=dtype)
    tries = []
    for _ in range(4):
        start = time.perf_counter()
        torch.nn.functional.linear(rows, weight)
        tries.append(time.perf_counter() - start)
    return min(tries[1:])
