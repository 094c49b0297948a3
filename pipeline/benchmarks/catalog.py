"""The benchmarks by name. Each is imported only when it is run: some need what others must do without."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.benchmarks.options import parse
from pipeline.benchmarks.rows import Report

Say = Callable[[str], None]
Keep = Callable[[Report], None]
"""Takes what was measured so far, so that nothing of it is lost."""
Benchmark = Callable[[Mapping[str, str], Say, Keep], Report]


def _decoding(given: Mapping[str, str], say: Say, keep: Keep) -> Report:
    from pipeline.benchmarks import decoding

    return decoding.run(parse(decoding.Options, given), say)


def _lossless(given: Mapping[str, str], say: Say, keep: Keep) -> Report:
    from pipeline.benchmarks import lossless

    return lossless.run(parse(lossless.Options, given), say)


def _gpu(given: Mapping[str, str], say: Say, keep: Keep) -> Report:
    from pipeline.benchmarks.gpu import run

    return run.run(parse(run.Options, given), say, keep)


def _search(given: Mapping[str, str], say: Say, keep: Keep) -> Report:
    from pipeline.benchmarks.search import run

    return run.run(parse(run.Options, given), say, keep)


BENCHMARKS: Mapping[str, Benchmark] = {"decoding": _decoding, "lossless": _lossless, "gpu": _gpu, "search": _search}
