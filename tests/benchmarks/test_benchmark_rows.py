"""A row's ratio says how many times better ours is, and it holds exactly when it reaches what was wanted."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest

from pipeline.benchmarks.options import parse, split
from pipeline.benchmarks.rows import EQUAL_UNIT, Report, Row, Wanted, alone, as_json, compared
from pipeline.benchmarks.table import markdown_table
from pipeline.records.failure import InputError

CONDITIONS = dict.fromkeys(
    (
        "accelerator",
        "threads",
        "cpus",
        "dtype",
        "python",
        "torch",
        "transformers",
        "load_before",
        "load_after",
        "created",
    ),
    "x",
)


def report(*rows: Row) -> Report:
    return Report(benchmark="some", settings={"tokens": 8}, conditions=CONDITIONS, rows=rows)


def test_of_rates_the_ratio_is_ours_over_the_peers() -> None:
    row = compared("rate", "tokens/s", "more", [30, 20, 24], "peer", [20, 20, 20])
    assert (row.ours, row.peer_value, row.ratio, row.low, row.high) == (24, 20, 1.2, 1.0, 1.5)


def test_of_times_the_ratio_is_the_peers_over_ours() -> None:
    row = compared("time", "ms", "less", [50], "peer", [75])
    assert row.ratio == 1.5


def test_the_ratio_is_of_arms_of_one_repeat_not_of_medians() -> None:
    """A slow minute slows both arms: the repeats' ratios are 2 each, whatever the medians are."""
    assert compared("rate", "tokens/s", "more", [20, 2, 40], "peer", [10, 1, 20]).ratio == 2


@pytest.mark.parametrize(("bound", "holds"), [(1.2, True), (1.21, False)])
def test_a_row_holds_when_its_ratio_reaches_what_was_wanted(bound: float, holds: bool) -> None:
    row = compared("rate", "tokens/s", "more", [24], "peer", [20], Wanted("ratio", ">=", bound))
    assert row.holds is holds
    assert row.wanted == f"ratio >= {bound}"


def test_a_bound_on_our_own_figure_needs_no_peer() -> None:
    assert alone("overhead", "of τ0", "less", [0.05], Wanted("ours", "<=", 0.05)).holds is True
    assert alone("overhead", "of τ0", "less", [0.06], Wanted("ours", "<=", 0.05)).holds is False


def test_without_the_peer_it_is_not_known_whether_a_row_holds() -> None:
    row = alone("rate", "tokens/s", "more", [24, 26, 25], Wanted("ratio", ">=", 1.2))
    assert (row.holds, row.ratio, row.peer, row.low, row.high) == (None, None, "", 24, 26)


def test_the_json_has_every_field_of_every_row() -> None:
    written = json.loads(as_json(report(alone("a", "ms", "less", [1.0]))))
    assert set(written) == {"benchmark", "settings", "conditions", "rows", "notes", "failures"}
    assert set(written["rows"][0]) == {f.name for f in fields(Row)}


def test_what_is_not_finite_is_never_written() -> None:
    with pytest.raises(ValueError, match="row a"):
        as_json(report(alone("a", "ms", "less", [math.nan])))


def test_the_markdown_table_has_a_line_a_row() -> None:
    lines = markdown_table(report(alone("a", "ms", "less", [1.0]), alone("b", "ms", "less", [2.0]))).splitlines()
    assert [line.split(" | ")[0] for line in lines[:4]] == ["| metric", "| ---", "| a", "| b"]


def test_rows_named_by_three_parts_become_a_grid() -> None:
    equal = alone("ngram · greedy · C1", EQUAL_UNIT, "less", [0], Wanted("ours", "<=", 0))
    low = alone("medusa · t1 · C6", "p", "more", [1e-7], Wanted("ours", ">", 1e-4))
    assert markdown_table(report(equal, low)).splitlines()[:4] == [
        "|  | greedy · C1 | t1 · C6 |",
        "| --- | --- | --- |",
        "| ngram | equal | – |",
        "| medusa | – | **1e-07 p** |",
    ]


def test_options_are_read_by_type_and_what_is_not_known_is_refused() -> None:
    from pipeline.benchmarks.decoding import Options

    options = parse(Options, split(["tokens=8", "threads=1", "spec_bench=a=b.jsonl"]))
    assert (options.tokens, options.threads, options.spec_bench) == (8, 1, "a=b.jsonl")
    with pytest.raises(InputError, match=r"token: unknown; allowed are source, .*tokens"):
        parse(Options, {"token": "8"})
    with pytest.raises(InputError, match="repeats=0: must be a whole number of at least 1"):
        parse(Options, {"repeats": "0"})
    with pytest.raises(InputError, match="KEY=VALUE"):
        split(["tokens"])
    with pytest.raises(InputError, match="twice"):
        split(["tokens=1", "tokens=2"])
