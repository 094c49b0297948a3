"""Linear layers of a CPU model with their weights packed for products of few rows.

PyTorch's fp32 product of 1 to 20 rows reads an unpacked weight slowly: a verification of 5 positions costs several
times one of 1. oneDNN reorders a weight once, at load, for any number of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

PROBED_ROWS = (1, 3, 5, 16)
"""Plain steps, verifications and small batches: what decoding is made of."""
NOISE = 1.05
"""Two timings of one product differ by as much."""
_REPEATS = 5


class PackedLinear(nn.Module):
    """x Wᵀ + b for x [..., in] → [..., out], with W packed by oneDNN. ``linear`` gives its weight up."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        # A plain attribute: an opaque tensor can be neither a parameter nor moved, saved or counted.
        self._packed = _pack(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return _packed_product(x, self._packed, self.bias)


def pack(model: nn.Module) -> None:
    """Replace the linear layers of ``model``, on a CPU, whose packed product is the faster one on this machine.

    Which that is depends on the processor and the shape, so it is measured here, once for each shape: it must not be
    slower for one row, or plain steps would pay for verifications, and faster over ``PROBED_ROWS``. Does nothing where
    PyTorch was built without oneDNN.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    gains: dict[tuple[int, int, bool, torch.dtype], bool] = {}
    with torch.inference_mode():
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is not nn.Linear or child.weight.device.type != "cpu":
                    continue
                kind = (child.out_features, child.in_features, child.bias is not None, child.weight.dtype)
                if kind not in gains:
                    gains[kind] = _gains(child)
                if gains[kind]:
                    setattr(parent, name, PackedLinear(child))


def _gains(linear: nn.Linear) -> bool:
    """Whether the packed product is no slower for one row, and faster in the sum over ``PROBED_ROWS``."""
    try:
        packed = _pack(linear.weight)
        plain_s, packed_s = [], []
        for rows in PROBED_ROWS:
            x = torch.ones(1, rows, linear.in_features, dtype=linear.weight.dtype)
            plain_s.append(_fastest_s(lambda x=x: linear(x)))  # type: ignore[misc]
            packed_s.append(_fastest_s(lambda x=x: _packed_product(x, packed, linear.bias)))  # type: ignore[misc]
    except (RuntimeError, AttributeError):  # a dtype or a build that oneDNN does not serve
        return False
    return packed_s[0] <= NOISE * plain_s[0] and sum(packed_s) < sum(plain_s)


def _fastest_s(product: Callable[[], Tensor]) -> float:
    product()
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return packed


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
