"""The decision table is whole and readable at any width."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from pipeline.records.cell import CellKey
from pipeline.records.decision import Decision
from pipeline.records.target import DraftModel, Ngram
from pipeline.report.console import decision_table, markdown_table
from pipeline.report.table import markdown_explanations

CELL = CellKey(target="smollm2", workload="code_edit", sampling="greedy", concurrency=1, accelerator="cpu")
ON = Decision(
    cell=CELL,
    status="on",
    speculate=True,
    draft=Ngram(name="ngram"),
    gamma=4,
    speedup=1.421,
    speedup_low=1.309,
    speedup_high=1.534,
    acceptance_rate=0.613,
    emitted_per_verification=2.104,
    tau0_ms=10.0,
    tau_spec_ms=14.8,
    reason="measured 1.42× (1.31–1.53, 98.3 %) on 12 fresh prompts: 2.10 tokens per verification of 1.48 plain steps",
    measurement="m1",
)
LONG = replace(
    ON,
    cell=CellKey(target="qwen3_8b", workload="summarization", sampling="t07_p95", concurrency=32, accelerator="cpu"),
    status="undecided",
    draft=DraftModel(name="qwen3_06b_distilled", source="x"),
)
FAILED = replace(
    ON,
    status="failed",
    draft=None,
    gamma=0,
    speedup=None,
    speedup_low=None,
    speedup_high=None,
    acceptance_rate=None,
    emitted_per_verification=None,
    reason="out of memory: [red]needs[/red] 9 GiB [CUDA]",
)


def shown(decisions, width: int, **options) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False, **options)
    console.print(decision_table(decisions))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_every_word_is_there_and_no_line_is_too_long(width) -> None:
    text = shown([ON, LONG, FAILED], width)
    assert max(map(len, text.splitlines())) <= width
    words = "".join(re.split(r"\s+", text))
    for expected in ("undecided", "failed", "1.42×(1.31–1.53)", "0.61", "2.10", "[CUDA]", "[red]needs[/red]"):
        assert expected in words


def test_at_80_columns_a_row_is_one_line_and_its_reason_follows_indented() -> None:
    lines = shown([ON], 80).splitlines()
    row = next(i for i, line in enumerate(lines) if "1.42× (1.31–1.53)" in line)
    assert re.search(r"on +ngram +4 +1\.42× \(1\.31–1\.53\) +0\.61 +2\.10", lines[row])
    reason = " ".join(line.strip() for line in lines if line.startswith("  "))
    assert reason == ON.reason


@pytest.mark.parametrize("width", [60, 80, 200])
def test_why_the_speedup_is_not_the_ideal_one_follows_the_reason(width) -> None:
    text = "".join(shown([replace(ON, why="at α 0.80 the ideal is 2.80×"), FAILED], width).split())
    assert 0 < text.index("1.48plainsteps") < text.index("atα0.80theidealis2.80×") < text.index("outofmemory")


def test_explanations_stand_below_the_markdown_table_for_the_cells_that_have_one() -> None:
    lines = markdown_explanations([replace(ON, why="ideal | 2.80×"), FAILED]).splitlines()
    assert lines[-1] == "- smollm2 · code_edit · greedy · C1: ideal \\| 2.80×"
    assert sum(line.startswith("- ") for line in lines) == 1
    assert markdown_explanations([ON]) == ""


def test_on_a_wide_terminal_the_reason_stands_in_the_row() -> None:
    assert any("1.42× (1.31–1.53)" in line and "measured" in line for line in shown([ON], 200).splitlines())


def test_columns_stand_under_their_headings() -> None:
    lines = shown([ON, replace(ON, status="off")], 100).splitlines()
    assert lines[0].index("status") == lines[2].index("on ")
    assert lines[0].index("speedup") == lines[2].index("1.42×")


def test_the_accelerator_is_named_only_where_it_differs() -> None:
    other = replace(ON, cell=replace(CELL, accelerator="H200"))
    assert "cpu" not in shown([ON, ON], 200)
    assert "· H200" in shown([ON, other], 200)


def test_colour_is_left_out_when_asked(monkeypatch) -> None:
    assert "\x1b[32m" in shown([ON], 100, force_terminal=True, color_system="standard", no_color=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown([ON], 100, force_terminal=True, color_system="standard")


def test_no_decision_is_said_so() -> None:
    assert "no cell has been decided" in shown([], 80)
    assert markdown_table([]) == "No cell has been decided.\n"


def test_markdown_has_a_row_per_cell_and_text_cannot_break_it() -> None:
    lines = markdown_table([ON, replace(FAILED, reason="a | b\nc")]).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith(
        "| smollm2 · code_edit · greedy · C1 | on | ngram | 4 | 1.42× (1.31–1.53) | 0.61 | 2.10 |"
    )
    assert lines[3].endswith("| a \\| b c |")
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
