"""How a question is put to many simulated cells at once, and what a share of them is worth as a row."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

from pipeline.benchmarks.rows import Better, Between, Row, Wanted, known

Answer = TypeVar("Answer")

CELLS_APART = 1_000_000
"""Between the seeds of one lot of cells and the next one's."""
CHUNK = 10
"""Cells handed to a process at once."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """``cells``: how many a question is put to, in equal parts at each concurrency; they are shared out among
    ``processes``."""

    cells: int
    processes: int
    say: Callable[[str], None]

    def each(self, work: Callable[[int], Answer], first: int, count: int, what: str) -> list[Answer]:
        """``work`` of seeds ``first``, ``first`` + 1 …, in order. It must be a function of a module."""
        seeds = range(first, first + max(1, count))
        chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
        done: dict[int, list[Answer]] = {}
        for place, answers in self._answered(work, chunks):
            done[place] = answers
            if len(done) % max(1, len(chunks) // 10) == 0:
                self.say(f"{what}: {sum(map(len, done.values()))} of {len(seeds)} cells")
        return [answer for place in range(len(chunks)) for answer in done[place]]

    def _answered(
        self, work: Callable[[int], Answer], chunks: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, list[Answer]]]:
        """(place of a chunk, its answers) as they come."""
        if self.processes == 1:
            yield from ((place, _work(work, chunk)) for place, chunk in enumerate(chunks))
            return
        with ProcessPoolExecutor(self.processes, multiprocessing.get_context("spawn")) as pool:
            pending = {pool.submit(_work, work, chunk): place for place, chunk in enumerate(chunks)}
            try:
                for future in as_completed(pending):
                    yield pending[future], future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def share_row(
    metric: str, hits: Sequence[bool], unit: str, better: Better = "more", wanted: Wanted | Between | None = None
) -> Row:
    """The share of ``hits``; ``low`` and ``high`` are one Monte-Carlo standard error away.

    The error of a share of none or of all is that of one hit or miss more: it is not known to the last digit either.
    """
    n, count = len(hits), sum(hits)
    near = min(max(count, 1), n - 1) / n if n > 1 else 0.5
    share, error = count / n, sqrt(near * (1 - near) / n)
    return known(metric, unit, better, share, share - error, share + error, wanted)


def mean_row(
    metric: str, values: Sequence[float], unit: str, better: Better = "less", wanted: Wanted | Between | None = None
) -> Row:
    """Their mean, with its Monte-Carlo standard error."""
    error = statistics.stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    mean = statistics.fmean(values)
    return known(metric, unit, better, mean, mean - error, mean + error, wanted)


def _work(work: Callable[[int], Answer], seeds: Sequence[int]) -> list[Answer]:
    return [work(seed) for seed in seeds]
