"""Linear layers of a CPU model with their weights packed for products of few rows.

PyTorch's fp32 product of a few rows reads an unpacked weight slowly, on some processors always, on others from 4 rows
on: a verification of 5 positions then costs several times one of 1. oneDNN reorders a weight once, at load, for any
number of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.engines.decoding.free_memory import free_bytes

PROBED_ROWS = (1, 2, 3, 4, 5, 6, 8, 16)
"""Plain steps, verifications and small batches: what decoding is made of."""
NOISE = 0.05
"""Two timings of one product differ by as much of it."""
LEAST_S = 1e-9
"""What a clock that is too coarse for a product is taken to have shown."""
CACHE_BYTES = 64 * 2**20
"""More than a processor's caches keep for one process, in most."""
PROBED_LAYERS = 8
MEMORY_SHARE = 0.25
"""Of the memory that is free, what second copies of weights may take: caches, drafts and other workers come later."""
_REPEATS = 5


class PackedLinear(nn.Module):
    """x Wᵀ + b for x [..., in] → [..., out], with W packed by oneDNN from ``fewest`` rows on.

    Products of fewer rows are the layer's own. With none of them, ``linear`` gives its weight up.
    """

    def __init__(self, linear: nn.Linear, fewest: int = 1) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.fewest = fewest
        self.bias = linear.bias
        self.weight = linear.weight if fewest > 1 else None
        # A plain attribute: an opaque tensor can be neither a parameter nor moved, saved or counted.
        self._packed = _pack(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is not None and x.numel() < self.fewest * self.in_features:
            return functional.linear(x, self.weight, self.bias)
        return _packed_product(x, self._packed, self.bias)


def pack(model: nn.Module) -> None:
    """Pack the linear layers of ``model``, on a CPU, for the rows at which that is faster on this machine.

    Which that is depends on the processor and the shape, so it is measured here, once for each shape. Where a product
    of few rows is faster unpacked, both weights are kept if memory allows; else a layer is packed only if that is no
    slower for one row, or plain steps would pay for verifications. Does nothing where PyTorch was built without oneDNN.
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
    tied = {p.data_ptr() for m in model.modules() if type(m) is not nn.Linear for p in m.parameters(recurse=False)}
    room = MEMORY_SHARE * free_bytes()
    with torch.inference_mode():
        for layers in kinds.values():
            linears = [linear for _, _, linear in layers]
            # A tied weight stays with the embedding anyway, so that its second copy is the packed one.
            second_copies = sum(linear.weight.nbytes for linear in linears if linear.weight.data_ptr() not in tied)
            fewest = _fewest_rows(linears[:PROBED_LAYERS], other, both=second_copies <= room)
            if fewest is None:
                continue
            room -= second_copies if fewest > 1 else 0.0
            for parent, name, linear in layers:
                setattr(parent, name, PackedLinear(linear, fewest))


def _fewest_rows(linears: Sequence[nn.Linear], other: Tensor, *, both: bool) -> int | None:
    """From how many rows on packed products are the faster ones; None where they are not.

    Above 1 only where ``both`` weights may be kept. Between two timings ``other`` passes through the caches, as the
    rest of the model does between two steps: a step reads its weights from memory, where a packed one is read faster.
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
        return None
    return _chosen(plain_s, packed_s, both=both)


def _chosen(plain_s: Sequence[float], packed_s: Sequence[float], *, both: bool) -> int | None:
    """``_fewest_rows`` by the seconds that each product took at each of ``PROBED_ROWS``.

    What counts is how much longer than the faster product one takes, alike at every number of rows. One copy of the
    weights is preferred where a second one gains no more than noise.
    """
    least = [max(min(pair), LEAST_S) for pair in zip(plain_s, packed_s, strict=True)]
    longer = [(p / s - 1, q / s - 1) for p, q, s in zip(plain_s, packed_s, least, strict=True)]
    lost = [sum(p for p, _ in longer[:i]) + sum(q for _, q in longer[i:]) for i in range(len(longer) + 1)]
    best = min(range(len(lost)), key=lost.__getitem__)
    always, never = lost[0] - lost[best], lost[-1] - lost[best]
    if longer[0][1] <= NOISE and lost[0] < lost[-1] and (always <= NOISE or not both):
        return 1
    if not both or never <= NOISE:
        return None
    return PROBED_ROWS[best]


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
