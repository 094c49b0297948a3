"""Which prompts a cell's search takes, and which its confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from pipeline.measurement.statistics import DECISIVE_UNITS
from pipeline.records.failure import InputError
from pipeline.records.settings import Protocol

SEARCH_BLOCKS, CONFIRM_BLOCKS = 3, 9
LOOKS = 3
FEWEST_PROMPTS = 3
"""One to search on, and two for a confirmation to have an interval at all."""


@dataclass(frozen=True)
class Span:
    """``count`` prompts from ``first`` on; where only ``distinct`` are to be had, the same ones come again.

    ``offset`` is how many the spans before it have dealt from the same prompts, so that looks go on where the last one
    stopped.
    """

    first: int
    count: int
    distinct: int
    offset: int = 0

    def dealt(self) -> tuple[tuple[int, int], ...]:
        """(prompt's place in the arranged order, how often it was dealt before), ``count`` long."""
        places = range(self.offset, self.offset + self.count)
        return tuple((self.first + place % self.distinct, place // self.distinct) for place in places)


@dataclass(frozen=True)
class Allotment:
    """The search's prompts, and those of the confirmation's looks: new prompts of each look, pooled with the last's."""

    search: Span
    looks: tuple[Span, Span, Span]

    @property
    def end(self) -> int:
        """How many prompts of the arranged order are used at all."""
        return max(span.first + span.distinct for span in (self.search, *self.looks))


def allot(available: int, concurrency: int, protocol: Protocol, workload: str = "") -> Allotment:
    """Deal ``available`` prompts out to the search and, disjoint from it, to the looks of the confirmation.

    A search has max(``search_prompts``, 3 C) prompts, a confirmation max(``confirm_prompts``, 9 C), each rounded up to
    whole blocks of C; the looks end at a third, two thirds and all of its blocks. Where there are fewer prompts, the
    sizes stay and prompts repeat: first the search's (down to one block, or three prompts, but never below what leaves
    the confirmation the units it needs to decide), then the confirmation's. Raises InputError below 3 prompts.
    """
    if concurrency < 1:
        raise InputError(f"concurrency must be >= 1, got {concurrency}")
    if available < FEWEST_PROMPTS:
        raise InputError(
            f"workload {workload or '(unnamed)'}: {available} prompts are too few; at least {FEWEST_PROMPTS} are needed"
            f" to measure, and {DECISIVE_UNITS + 1} to decide"
        )
    search = _whole_blocks(max(protocol.search_prompts, SEARCH_BLOCKS * concurrency), concurrency)
    confirm = _whole_blocks(max(protocol.confirm_prompts, CONFIRM_BLOCKS * concurrency), concurrency)
    least = min(search, max(concurrency, 3), available // 3)
    if available > DECISIVE_UNITS:
        least = min(least, available - DECISIVE_UNITS)
    fresh = min(confirm, available - least)
    searched = min(search, available - fresh)
    blocks = confirm // concurrency
    ends = [-(-blocks * look // LOOKS) * concurrency for look in range(LOOKS + 1)]
    first, second, third = (_look(searched, fresh, start, end) for start, end in pairwise(ends))
    return Allotment(search=Span(first=0, count=search, distinct=searched), looks=(first, second, third))


def _look(first: int, fresh: int, start: int, end: int) -> Span:
    """Places ``start`` to ``end`` of a confirmation that has ``fresh`` prompts from ``first`` on."""
    if end <= fresh:
        return Span(first=first + start, count=end - start, distinct=end - start)
    return Span(first=first, count=end - start, distinct=fresh, offset=start)


def _whole_blocks(count: int, concurrency: int) -> int:
    return ceil(count / concurrency) * concurrency
