"""What steps, verifications and draft steps take, beside what the memory's bandwidth allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from pipeline.benchmarks.gpu.decoder import UNSETTLED, Decoder, RandomProposer, Took, requests, took
from pipeline.benchmarks.gpu.shapes import Scale, bytes_of_a_token, bytes_read
from pipeline.benchmarks.rows import Row, Wanted, alone, compared
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.proposers.contract import Proposer
from pipeline.speedup import expected_tokens

ALPHA = 0.7
GAMMA = 4
FLOOR = Wanted("ratio", ">=", 0.75)
_COPIES = 10


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second that a copy within the device's memory moves, read and written ones together."""

    per_s: float

    def ms(self, moved: float) -> float:
        return moved / self.per_s * 1e3


def measure_bandwidth(scale: Scale, device: torch.device) -> tuple[Bandwidth, Row]:
    """The best of ``_COPIES`` copies, after one that is not counted; its row shows them all."""
    source = torch.zeros(scale.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rates = []
    for _ in range(_COPIES + 1):
        _wait(device)
        start = time.perf_counter()
        target.copy_(source)
        _wait(device)
        rates.append(2 * scale.copy_bytes / (time.perf_counter() - start))
    rates = rates[1:]
    return Bandwidth(max(rates)), alone("copy_bandwidth", "GB/s", "more", [rate / 1e9 for rate in rates])


class Speed:
    """Blocks of rows about ``target`` (``prefix`` begins their names)."""

    def __init__(self, decoder: Decoder, scale: Scale, target: CachedModel, prefix: str = "") -> None:
        self._decoder = decoder
        self._scale = scale
        self._target = target
        self._prefix = prefix

    def floor(self, bandwidth: Bandwidth) -> Iterator[Row]:
        """τ0 at C = 1 beside the time that reading its weights, keys and values takes, and beside itself unrecorded."""
        eager = self._decoder.cached(self._target.model, graphs=False)
        recorded, launched = [], []
        for _ in range(self._scale.repeats):
            recorded.append(self._measure(self._target, 1, 0))
            launched.append(self._measure(eager, 1, 0))
        model = self._target.model
        floors = [bandwidth.ms(bytes_read(model) + one.context_tokens * bytes_of_a_token(model)) for one in recorded]
        ours = [one.tau for one in recorded]
        yield compared(
            f"{self._prefix}tau0_c1",
            "ms",
            "less",
            ours,
            "its bytes at copy bandwidth",
            floors,
            None if self._prefix else FLOOR,
        )
        yield compared(
            f"{self._prefix}graphs_c1", "ms", "less", ours, "launched one by one", [one.tau for one in launched]
        )

    def verification(self, slots: int, found: Callable[[int, int, float], None] | None = None) -> Iterator[Row]:
        """τ0 and τ_v(γ)/τ0 at ``slots``; ``found`` is told (slots, γ, τ_v/τ0)."""
        scale, proposer = self._scale, RandomProposer(self._target.vocabulary, self._decoder.device)
        plain: list[Took] = []
        wide: dict[int, list[Took]] = {gamma: [] for gamma in scale.gammas}
        for repeat in range(scale.repeats if slots < 64 else max(1, scale.repeats - 1)):
            plain.append(self._measure(self._target, slots, 0))
            for gamma in scale.gammas[:: 1 if repeat % 2 == 0 else -1]:
                wide[gamma].append(self._measure(self._target, slots, gamma, proposer))
        yield alone(f"{self._prefix}plain_c{slots}", "ms", "less", [one.tau for one in plain])
        for gamma, measured in wide.items():
            shares = [one.verify / base.tau for one, base in zip(measured, plain, strict=True)]
            yield alone(f"{self._prefix}verify_g{gamma}_c{slots}", "of τ0", "less", shares)
            if found is not None:
                found(slots, gamma, statistics.median(shares))
        if GAMMA in wide:
            shares = [one.overhead / base.tau for one, base in zip(wide[GAMMA], plain, strict=True)]
            yield alone(f"{self._prefix}overhead_g{GAMMA}_c{slots}", "of τ0", "less", shares)

    def draft_step(self, draft: CachedModel, slots: int) -> Iterator[Row]:
        """c: what one of ``GAMMA`` steps of ``draft`` takes, of τ0."""
        proposer = self._decoder.drafting(draft, self._target, slots, self._columns())
        shares = []
        for _ in range(self._scale.repeats if slots < 64 else 1):
            plain = self._measure(self._target, slots, 0)
            shares.append(self._measure(self._target, slots, GAMMA, proposer).draft / GAMMA / plain.tau)
        yield alone(f"{self._prefix}draft_step_c{slots}", "of τ0", "less", shares)

    def _measure(self, target: CachedModel, slots: int, gamma: int, proposer: Proposer | None = None) -> Took:
        scale = self._scale
        # Each iteration emits one token at least, and the last ones have no room for γ.
        tokens = 1 + scale.iterations + UNSETTLED + max(scale.gammas)
        asked = requests(slots, scale.prompt, tokens, target.vocabulary)
        return took(self._decoder.run(target, asked, slots, self._columns(), proposer, gamma), slots, 1 + gamma)

    def _columns(self) -> int:
        scale = self._scale
        return scale.prompt + 2 + scale.iterations + UNSETTLED + 2 * max(scale.gammas)


def crossover(verified: dict[tuple[int, int], float]) -> tuple[Row | None, str]:
    """From τ_v/τ0 by (C, γ): the least C at which a verification of ``GAMMA`` proposals outweighs what it may give.

    It gives E(α, γ) tokens for each row, and so it must not take longer than E plain steps: where it does, the best of
    drafts, one that takes no time, loses.
    """
    worth = float(expected_tokens(ALPHA, GAMMA))
    measured = sorted(slots for slots, gamma in verified if gamma == GAMMA)
    meaning = f"τ_v({GAMMA})/τ0 > E(α = {ALPHA}) = {worth:.2f}"
    for slots in measured:
        if verified[slots, GAMMA] > worth:
            return alone(f"crossover_g{GAMMA}", "C", "more", [slots]), f"crossover: the least measured C with {meaning}"
    return None, f"crossover: none; no measured C of {', '.join(map(str, measured)) or 'any'} has {meaning}"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
