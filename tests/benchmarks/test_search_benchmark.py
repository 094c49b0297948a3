"""The search benchmark: its cells are what they say they are, and it says so when the statistics are wrong."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from jobs.benchmark import main
from pipeline.benchmarks.rows import Between
from pipeline.benchmarks.search.asking import Asking, mean_row, share_row
from pipeline.benchmarks.search.cells import GAMMAS, any_cell, equal_cell, graded_cell
from pipeline.benchmarks.search.coverage import confirmed
from pipeline.benchmarks.search.real_cells import guided
from pipeline.benchmarks.search.regret import FIRST_SEED, compare
from pipeline.benchmarks.search.regret_cells import KINDS, regret_cell
from pipeline.benchmarks.search.run import QUESTIONS
from pipeline.benchmarks.search.whole import decide_cell
from pipeline.records.settings import SearchSettings
from pipeline.records.target import Candidate, Ngram


def asking(cells: int) -> Asking:
    return Asking(cells=cells, processes=1, say=lambda text: None)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_candidates_are_truly_worth_what_was_asked_for(concurrency: int) -> None:
    equal = equal_cell(5, concurrency, 1.0, 12)
    assert len({candidate.draft for candidate in equal.candidates}) == 12
    assert [equal.truth(candidate) for candidate in equal.candidates] == pytest.approx([1.0] * 12)
    graded = graded_cell(5, concurrency, (1.1, 0.9))
    truths = [graded.truth(candidate) for candidate in graded.candidates]
    assert len(truths) == 2 * len(GAMMAS)
    assert (max(truths[: len(GAMMAS)]), max(truths[len(GAMMAS) :])) == (pytest.approx(1.1), pytest.approx(0.9))
    assert len(set(truths)) == len(truths), "every other γ is worth less"


def test_cells_differ_and_are_the_same_again() -> None:
    assert any_cell(1, 8) == any_cell(1, 8)
    assert len({repr(any_cell(seed, 8).machine) for seed in range(20)}) == 20
    one, other = (any_cell(seed, 1).prepared(30) for seed in (1, 2))
    assert not {p.tokens for p in one.prompts} & {p.tokens for p in other.prompts}
    assert len({len(p.tokens) for p in one.prompts}) > 10


def test_intervals_hold_the_truth_and_half_as_wide_ones_would_be_found_out() -> None:
    found = asking(0).each(partial(confirmed, concurrency=1), 77, 30, "any")
    assert sum(one.at_level for one in found) >= 26
    assert all(one.deciding for one in found if one.at_level)
    assert sum(abs(one.error) <= one.half_width / 2 for one in found) < 26


def test_a_worthless_cell_is_not_turned_on_and_one_that_gains_a_third_is() -> None:
    assert decide_cell(equal_cell(3, 1, 1.0, 10), SearchSettings()).decision.status in ("off", "undecided")
    cell = graded_cell(3, 1, (1.35, 0.8))
    decision = decide_cell(cell, SearchSettings()).decision
    assert (decision.status, decision.draft) == ("on", cell.candidates[0].draft)


def test_guided_search_costs_less_than_the_grid_and_loses_little() -> None:
    found = [compare(seed) for seed in (FIRST_SEED, FIRST_SEED + 4)]
    for one in found:
        assert one.by_strategy["guided"].seconds < one.by_strategy["grid"].seconds
        assert one.by_strategy["guided"].measured < one.by_strategy["grid"].measured
        assert one.by_strategy["guided"].value >= 0.9 * one.by_strategy["grid"].value
        assert all(searched.value <= one.best for searched in one.by_strategy.values())


def test_random_cells_are_of_every_kind_and_the_same_again() -> None:
    cells = [regret_cell(seed) for seed in range(24)]
    assert {cell.cell.workload.name for cell in cells} == set(KINDS)
    assert {len(cell.drafts) for cell in cells} == {1, 2, 3, 4, 5}
    assert {max(c.gamma for c in cell.candidates) for cell in cells} == {12}
    assert repr(regret_cell(3)) == repr(cells[3])


def test_answers_are_in_order_however_many_processes() -> None:
    several = Asking(cells=0, processes=2, say=lambda text: None).each(abs, -25, 25, "any")
    assert several == asking(0).each(abs, -25, 25, "any") == list(range(25, 0, -1))


def test_a_share_carries_its_monte_carlo_error() -> None:
    row = share_row("some", [True] * 80 + [False] * 20, "of cells", wanted=Between(0.8, 0.9))
    assert (row.ours, row.low, row.high, row.holds) == (0.8, pytest.approx(0.76), pytest.approx(0.84), True)
    assert str(Between(0.8, 0.9)) == row.wanted == "ours 0.8 – 0.9"
    assert share_row("some", [True] * 100, "of cells", wanted=Between(0.8, 0.9)).holds is False
    assert share_row("some", [True] * 100, "of cells").low < 1
    mean = mean_row("some", [1.0, 2.0, 3.0], "ms")
    assert (mean.ours, mean.high) == (2.0, pytest.approx(2 + 3**-0.5))


@pytest.mark.slow
def test_the_job_answers_every_question(tmp_path: Path) -> None:
    assert main(["search", "cells=8", "processes=1", "skip=real", f"output_dir={tmp_path}"]) == 0
    report = json.loads((tmp_path / "search.json").read_text())
    names = {row["metric"] for row in report["rows"]}
    assert {"coverage", "coverage_c1", "coverage_c8", "false_on", "power", "a_a_c1", "a_a_half_width_c8"} <= names
    assert report["failures"] == []
    assert {"regret_guided", "seconds_guided", "seconds_guided_tpe"} <= names
    assert set(QUESTIONS) == {"coverage", "a_a", "false_on", "power", "regret", "real"}


def test_the_job_keeps_what_was_asked_for(tmp_path: Path) -> None:
    assert main(["search", "cells=2", "only=a_a", "processes=1", f"output_dir={tmp_path}"]) == 0
    report = json.loads((tmp_path / "search.json").read_text())
    assert {row["metric"] for row in report["rows"]} == {
        f"a_a{part}_c{c}" for part in ("", "_half_width") for c in (1, 8)
    }
    assert report["settings"]["cells"] == 2
    assert main(["search", "only=nothing", f"output_dir={tmp_path}"]) == 2
    assert main(["search", "skip=nothing", f"output_dir={tmp_path}"]) == 2


class Told:
    """Proposes what it was told, round by round."""

    def __init__(self, *rounds: tuple[Candidate, ...]) -> None:
        self._rounds = list(rounds)

    def propose(self, open_candidates, scores, count, excesses=None) -> tuple[Candidate, ...]:
        return self._rounds.pop(0) if self._rounds else ()


def test_a_forecast_that_stands_alone_is_known_whatever_follows(make_measurement) -> None:
    one, two = (Candidate(draft=Ngram(name="ngram"), gamma=gamma) for gamma in (1, 2))
    measured = {c: make_measurement(str(c.gamma), candidate=c) for c in (one, two)}
    assert guided(Told((one,)), measured, 4) == ([one], True)
    assert guided(Told((one,), (two,)), measured, 4) == ([one, two], True)
    assert guided(Told((two, one)), measured, 4) == ([two, one], False)
    assert guided(Told((two, one), ()), measured, 4) == ([two, one], False)
