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
    arms: Mapping[str, Callable[[U], P]],
    units: Sequence[U],
    repeats: int,
    say: Callable[[str], None],
    cpu_clocks: Mapping[str, Callable[[], float]] | None = None,
) -> dict[str, list[Pass[P]]]:
    """Every arm over every unit, ``repeats`` times; the order of the arms is turned round from unit to unit.

    ``cpu_clocks``: the CPU seconds of arms whose work is done by another process.
    """
    clocks = cpu_clocks or {}
    passes: dict[str, list[Pass[P]]] = {name: [] for name in arms}
    for repeat in range(repeats):
        seconds = dict.fromkeys(arms, 0.0)
        products: dict[str, list[P]] = {name: [] for name in arms}
        for index, unit in enumerate(units):
            say(f"repeat {repeat + 1} of {repeats}, {index + 1} of {len(units)}: {', '.join(arms)}")
            for name in list(arms)[:: 1 if (repeat + index) % 2 == 0 else -1]:
                work = lambda work=arms[name], unit=unit: work(unit)  # noqa: E731
                taken_s, product = timed(work, clocks.get(name))
                seconds[name] += taken_s
                products[name].append(product)
        for name in arms:
            passes[name].append(Pass(seconds[name], tuple(products[name])))
    return passes


def timed(work: Callable[[], P], clock: Callable[[], float] | None = None) -> tuple[float, P]:
    """Wall seconds of ``work`` on a CPU, and what it returned; again, up to ``TRIES`` times, while it was starved.

    ``clock``: CPU seconds of what does the work, None for this process.
    """
    clock = clock or time.process_time
    for _ in range(TRIES):
        cpu_s, start = clock(), time.perf_counter()
        product = work()
        taken_s = time.perf_counter() - start
        if clock() - cpu_s >= STARVED * taken_s:
            break
    return taken_s, product
