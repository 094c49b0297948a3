"""``jobs.benchmark search``: the product's claims of its own statistics and search, on cells whose truth is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from pipeline.benchmarks.conditions import conditions, cpus, load
from pipeline.benchmarks.gpu.budget import Block, Progress, run_blocks
from pipeline.benchmarks.rows import Report, Row
from pipeline.benchmarks.search.asking import Asking
from pipeline.benchmarks.search.coverage import a_a, coverage
from pipeline.benchmarks.search.decisions import false_on, power
from pipeline.benchmarks.search.real_cells import real
from pipeline.benchmarks.search.regret import regret
from pipeline.engines.simulated import SimulatedEngine
from pipeline.records.failure import InputError

QUESTIONS: Mapping[str, Callable[[Asking], Iterator[Row]]] = {
    "coverage": coverage,
    "a_a": a_a,
    "false_on": false_on,
    "power": power,
    "regret": regret,
    "real": real,
}
"""Each yields its rows as they come."""

ERRORS = "from – to: one Monte-Carlo standard error to either side; of forecast_error the quartiles"
REAL = "rows from forecast_error_e on: SmolLM2-135M on all CPUs, not the simulated machine"


@dataclass(frozen=True, kw_only=True)
class Options:
    """``cells`` a question is put to, all concurrencies together; ``only`` keeps the questions whose name contains it,
    ``skip`` leaves one out: ``real`` needs PyTorch and the default target, and a machine with nothing else to do.

    ``processes`` None: one a CPU. No question is begun once ``minutes`` have passed.
    """

    cells: int = 2000
    only: str = ""
    skip: str = ""
    processes: int | None = None
    minutes: int = 60


def run(options: Options, say: Callable[[str], None], keep: Callable[[Report], None]) -> Report:
    """``keep`` is given the report so far after each figure. Raises InputError when ``only`` keeps no question."""
    start, load_before = time.monotonic(), load()
    asking = Asking(cells=options.cells, processes=options.processes or cpus(), say=say)
    asked = {name: question for name, question in QUESTIONS.items() if options.only in name and name != options.skip}
    if not asked or options.skip not in ("", *QUESTIONS):
        said = f"only={options.only} skip={options.skip}"
        raise InputError(f"{said}: no question has that in its name; they are {', '.join(QUESTIONS)}")

    def report(progress: Progress) -> Report:
        return Report(
            benchmark="search",
            settings=asdict(options)
            | {"processes": asking.processes, "minutes_taken": round((time.monotonic() - start) / 60, 2)},
            conditions=conditions(SimulatedEngine().facts, load_before),
            rows=tuple(progress.rows),
            notes=(ERRORS, *((REAL,) if "real" in asked else ()), *(f"left out: {one}" for one in progress.left_out)),
            failures=tuple(progress.broken),
        )

    blocks = [Block(name, 0.0, lambda q=question: q(asking)) for name, question in asked.items()]  # type: ignore[misc]
    return report(run_blocks(blocks, 60.0 * options.minutes, lambda done: keep(report(done)), say))
