"""Several arms measured side by side: the same units of work, turn by turn, so that a slow minute slows them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

U = TypeVar("U")
P = TypeVar("P")

STARVED = 0.4
"""A unit that got less CPU time than this share of its wall time was stopped or crowded out, and is measured again."""
TRIES = 3


@dataclass(frozen=True)
class Pass(Generic[P]):
    """One repeat of one arm: its seconds over all units, and what each unit gave."""

    seconds: float
    products: tuple[P, ...]


def interleave(
    arms: Mapping[str, Callable[[U], P]], units: Sequence[U], repeats: int, say: Callable[[str], None]
) -> dict[str, list[Pass[P]]]:
    """Every arm over every unit, ``repeats`` times; the order of the arms is turned round from unit to unit."""
    passes: dict[str, list[Pass[P]]] = {name: [] for name in arms}
    for repeat in range(repeats):
        seconds = dict.fromkeys(arms, 0.0)
        products: dict[str, list[P]] = {name: [] for name in arms}
        for index, unit in enumerate(units):
            say(f"repeat {repeat + 1} of {repeats}, {index + 1} of {len(units)}: {', '.join(arms)}")
            for name in list(arms)[:: 1 if (repeat + index) % 2 == 0 else -1]:
                taken_s, product = timed(lambda work=arms[name], unit=unit: work(unit))  # type: ignore[misc]
                seconds[name] += taken_s
                products[name].append(product)
        for name in arms:
            passes[name].append(Pass(seconds[name], tuple(products[name])))
    return passes


def timed(work: Callable[[], P]) -> tuple[float, P]:
    """Wall seconds of ``work`` on a CPU, and what it returned; again, up to ``TRIES`` times, while it was starved."""
    for _ in range(TRIES):
        cpu_s, start = time.process_time(), time.perf_counter()
        product = work()
        taken_s = time.perf_counter() - start
        if time.process_time() - cpu_s >= STARVED * taken_s:
            break
    return taken_s, product
