"""The benchmarks by name. Each is imported only when it is run: some need what others must do without."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.benchmarks.options import parse
from pipeline.benchmarks.rows import Report

Say = Callable[[str], None]
Benchmark = Callable[[Mapping[str, str], Say], Report]


def _decoding(given: Mapping[str, str], say: Say) -> Report:
    from pipeline.benchmarks import decoding

    return decoding.run(parse(decoding.Options, given), say)


def _lossless(given: Mapping[str, str], say: Say) -> Report:
    from pipeline.benchmarks import lossless

    return lossless.run(parse(lossless.Options, given), say)


BENCHMARKS: Mapping[str, Benchmark] = {"decoding": _decoding, "lossless": _lossless}
