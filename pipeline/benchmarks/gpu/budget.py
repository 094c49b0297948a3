"""Blocks of measurements one after the other, each figure kept as soon as it is there, until the time is over."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.benchmarks.rows import Row


@dataclass(frozen=True)
class Block:
    """``rows`` measures and yields as it goes; ``least_s``: it is not begun with less time left than that."""

    name: str
    least_s: float
    rows: Callable[[], Iterator[Row]]


@dataclass
class Progress:
    """What came of the blocks so far: ``left_out`` for want of time, ``broken`` by an error, each with its reason."""

    rows: list[Row]
    left_out: list[str]
    broken: list[str]


def run_blocks(
    blocks: Sequence[Block],
    seconds: float,
    keep: Callable[[Progress], None],
    say: Callable[[str], None],
    now_s: Callable[[], float] = time.monotonic,
) -> Progress:
    """Run ``blocks`` in order within ``seconds``; ``keep`` is called after each row. One that breaks stops no other."""
    start, progress = now_s(), Progress([], [], [])
    for block in blocks:
        left_s = seconds - (now_s() - start)
        if left_s < block.least_s:
            progress.left_out.append(f"{block.name}: needs {block.least_s:.0f} s, {max(0.0, left_s):.0f} s were left")
            keep(progress)
            continue
        say(f"{block.name}, {left_s:.0f} s left")
        try:
            for row in block.rows():
                progress.rows.append(row)
                keep(progress)
                if now_s() - start > seconds:
                    progress.left_out.append(f"{block.name}: what follows {row.metric}, the time was over")
                    keep(progress)
                    break
        except Exception as error:  # whatever it is, the other blocks may still say something
            traceback.print_exc()
            progress.broken.append(f"{block.name}: {type(error).__name__}: {_first_line(error)}")
            keep(progress)
    return progress


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")
