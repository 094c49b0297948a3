"""Linear layers of a CPU model with their weights packed for products of few rows.

PyTorch's fp32 product of 1 to 20 rows reads an unpacked weight slowly: a verification of 5 positions costs several
times one of 1. oneDNN reorders a weight once, at load, for any number of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

PROBED_ROWS = (1, 3, 5, 16)
"""Plain steps, verifications and small batches: what decoding is made of."""
NOISE = 1.05
"""Two timings of one product differ by as much."""
CACHE_BYTES = 64 * 2**20
"""More than a processor's caches keep for one process, in most."""
PROBED_LAYERS = 8
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
    kinds: dict[tuple[int, int, bool, torch.dtype], list[tuple[nn.Module, str, nn.Linear]]] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.device.type == "cpu":
                kind = (child.out_features, child.in_features, child.bias is not None, child.weight.dtype)
                kinds.setdefault(kind, []).append((parent, name, child))
    weights = {c.weight.data_ptr(): c.weight.nbytes for layers in kinds.values() for _, _, c in layers}
    other = torch.zeros(min(CACHE_BYTES, sum(weights.values())) // 4)
    with torch.inference_mode():
        for layers in kinds.values():
            if _gains([linear for _, _, linear in layers[:PROBED_LAYERS]], other):
                for parent, name, linear in layers:
                    setattr(parent, name, PackedLinear(linear))


def _gains(linears: Sequence[nn.Linear], other: Tensor) -> bool:
    """Whether packed products are no slower for one row, and faster in the sum over ``PROBED_ROWS``.

    Between two timings ``other`` passes through the caches, as the rest of the model does between two steps: a step
    reads its weights from memory, where a packed one is read faster.
    """
    first = linears[0]
    try:
        packed = [(_pack(linear.weight), linear.bias) for linear in linears]
        plain_s, packed_s = [], []
        for rows in PROBED_ROWS:
            x = torch.ones(1, rows, first.in_features, dtype=first.weight.dtype)
            plain_s.append(_fastest_s(lambda x=x: [linear(x) for linear in linears], other))  # type: ignore[misc]
            packed_s.append(_fastest_s(lambda x=x: [_packed_product(x, w, b) for w, b in packed], other))  # type: ignore[misc]
    except (RuntimeError, AttributeError):  # a dtype or a build that oneDNN does not serve
        return False
    return packed_s[0] <= NOISE * plain_s[0] and sum(packed_s) < sum(plain_s)


def _fastest_s(products: Callable[[], list[Tensor]], other: Tensor) -> float:
    products()
    seconds = []
    for _ in range(_REPEATS):
        other.add_(1.0)
        start = time.perf_counter()
        products()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return packed


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
