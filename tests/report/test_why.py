"""The page that says, for every cell, why it does not reach its ideal speedup."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from pipeline.policy.decide import decide, off_by_forecast
from pipeline.records.target import Candidate, Ngram
from pipeline.report.gamma_figure import gamma_figure
from pipeline.report.why import why_page, write_why
from pipeline.report.why_figure import cell_figure

FIGURES = {
    "speedup": 2.0,
    "acceptance_rate": 0.8,
    "c": 0.05,
    "d": 0.2,
    "v": 1.25,
    "h": 0.05,
    "speedup_ideal": 2.8,
    "speedup_geometric": 2.24,
    "factor_drafting": 1.0,
    "factor_verification": 0.83,
    "factor_overhead": 2.24 / 2.8 / 0.83,
    "factor_proposals": 0.8,
    "factor_independence": 2.0 / 2.24 / 0.8,
    "factor_occupancy": 1.0,
    "prompt_output_overlap": 0.62,
    "overlap_acceptance_correlation": 0.71,
}
PLOTLY = "plotly.js v"


@pytest.fixture
def confirmed(make_measurement):
    return make_measurement("conf", kind="confirmation", **FIGURES)


@pytest.fixture
def searched(make_measurement):
    """Another candidate, and one that proposed nothing."""
    silent = {name: None for name, value in FIGURES.items() if name not in ("speedup", "d", "v", "h")}
    return [
        make_measurement("s2", candidate=Candidate(draft=Ngram(name="ngram"), gamma=2), **FIGURES | {"speedup": 1.6}),
        make_measurement("s9", candidate=Candidate(draft=Ngram(name="never"), gamma=9), **silent, speedup=0.9),
    ]


def test_the_bars_lead_from_the_ideal_through_the_geometric_to_the_measured(confirmed) -> None:
    bars = cell_figure(confirmed, [confirmed]).data[0]
    ends = dict(zip(bars.x, (base + height for base, height in zip(bars.base, bars.y, strict=True)), strict=True))
    assert list(bars.x)[::4] == ["ideal", "geometric", "measured"]
    assert (ends["ideal"], ends["geometric"], ends["measured"]) == (2.8, 2.24, 2.0)
    assert ends["overhead"] == pytest.approx(2.24)
    assert ends["occupancy"] == pytest.approx(2.0)
    hanging = [i for i, base in enumerate(bars.base) if base]
    assert len(hanging) == 6
    assert all(bars.base[i] == pytest.approx(bars.base[i - 1] + bars.y[i - 1]) for i in hanging)
    assert bars.text[2] == "×0.83"


def test_acceptance_stands_beside_what_independence_claims(confirmed) -> None:
    traces = {trace.name: trace for trace in cell_figure(confirmed, [confirmed]).data}
    assert tuple(traces["accepted with all before it"].y) == confirmed.marginal
    assert tuple(traces["α^i: independent acceptances"].y) == pytest.approx((0.8, 0.64, 0.512, 0.4096))
    by_bin = {trace.x: trace.y for trace in cell_figure(confirmed, [confirmed]).data if trace.x and "–" in trace.x[0]}
    assert by_bin == {("0–7", "8–15"): (0.6, 0.5), ("128–255",): (0.55,)}


def test_a_candidate_that_proposed_nothing_has_a_speedup_and_no_ideal(searched) -> None:
    figure = cell_figure(searched[1], searched)
    (bars,) = [trace for trace in figure.data if trace.x == ("measured",)]
    assert tuple(bars.y) == (0.9,)
    ideal = next(trace for trace in figure.data if trace.name == "ideal")
    assert tuple(ideal.y) == (2.8, None)


def test_an_interval_far_beyond_every_speedup_does_not_hide_them(confirmed) -> None:
    wide = replace(confirmed, metrics=replace(confirmed.metrics, speedup_high=300.0))
    assert cell_figure(wide, [wide]).layout.yaxis2.range == pytest.approx((0, 1.6 * 2.8))


def test_an_interval_that_leaves_the_speedups_room_is_drawn_whole(confirmed) -> None:
    wide = replace(confirmed, metrics=replace(confirmed.metrics, speedup_high=3.5))
    assert cell_figure(wide, [wide]).layout.yaxis2.range == pytest.approx((0, 1.05 * 3.5))


def test_every_candidate_is_drawn_by_its_gamma_measured_or_only_forecast(confirmed, searched, make_forecast) -> None:
    forecast = make_forecast({("ngram", 4): 1.9, ("ngram", 1): 1.2, ("other", 3): 0.8})
    traces = {trace.name: trace for trace in gamma_figure(forecast, [confirmed, *searched]).data}
    assert set(traces) == {"ngram, forecast", "other, forecast", "ngram, measured", "never, measured"}
    assert (traces["ngram, forecast"].x, traces["ngram, forecast"].y) == ((1, 4), (1.2, 1.9))
    assert (traces["ngram, measured"].x, traces["ngram, measured"].y) == ((4, 2), (2.0, 1.6))
    assert traces["ngram, measured"].marker.color == traces["ngram, forecast"].line.color
    assert traces["ngram, measured"].marker.color != traces["other, forecast"].line.color
    assert traces["ngram, measured"].marker.symbol == ("star", "circle")


def test_a_cell_that_only_its_forecast_decided_shows_the_forecast(confirmed, make_forecast) -> None:
    forecast = make_forecast({("ngram", 1): 0.5, ("ngram", 2): 0.4})
    decision = off_by_forecast(confirmed.cell, forecast, forecast.forecasts[0])
    page = why_page("demo", [decision], [], [forecast])
    assert 'id="gamma0"' in page
    assert page.count(PLOTLY) == 1
    assert 'id="gamma0"' not in why_page("demo", [decision], [], [])


def test_the_page_has_a_section_per_cell_and_every_candidate_side_by_side(confirmed, searched) -> None:
    a_a = replace(searched[0], id="aa", kind="aa", candidate=Candidate(draft=None, gamma=0))
    look = replace(confirmed, id="look", kind="confirmation_look")
    one = decide(confirmed.cell, searched, confirmed, [], 0.03)
    other = replace(confirmed.cell, concurrency=4)
    two = decide(other, [replace(searched[0], cell=other)], None, [], 0.03)
    page = why_page("demo", [one, two], [*searched, confirmed, look, a_a, replace(searched[0], id="x", cell=other)])
    first, second = page.split("<section")[1:]
    assert one.why in first
    assert re.findall(r"<td>(ngram γ\d ?✓?|never γ9)</td>", first) == ["ngram γ4 ✓", "ngram γ2", "never γ9"]
    (bold,) = re.findall(r'<tr class="evidence">(.*?)</tr>', first)
    assert bold.startswith("<td>ngram γ4 ✓</td><td>2.80×</td><td>2.24×</td><td>2.00×")
    assert "62% of the output" in first
    assert "at 0.71" in first
    assert re.findall(r"<td>(ngram γ\d ?✓?|never γ9)</td>", second) == ["ngram γ2"]
    assert two.why in second
    assert 'id="figure1"' in second


def test_the_page_needs_no_network_and_carries_its_library_once(confirmed) -> None:
    one = decide(confirmed.cell, [], confirmed, [], 0.03)
    two = replace(one, cell=replace(one.cell, concurrency=4))
    page = why_page("demo", [one, two], [confirmed, replace(confirmed, cell=two.cell)])
    assert page.count("Plotly.newPlot(") >= 2
    assert page.count(PLOTLY) == 1
    assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="?http', page)


def test_names_are_text_and_never_markup(confirmed) -> None:
    draft = Ngram(name="</script><b>")
    odd = replace(
        confirmed,
        cell=replace(confirmed.cell, workload="<script>x</script>"),
        candidate=Candidate(draft=draft, gamma=4),
    )
    decision = decide(odd.cell, [], odd, [], 0.03)
    page = why_page("<b>", [replace(decision, reason="a <i>b</i>")], [odd])
    assert "<script>x" not in page
    assert "</script><b>" not in page
    assert "<title>&lt;b&gt;" in page
    assert "a &lt;i&gt;b" in page


@pytest.mark.parametrize("speedup", [math.nan, math.inf])
def test_a_figure_that_is_no_number_does_not_break_the_page(confirmed, speedup) -> None:
    broken = replace(confirmed, metrics=replace(confirmed.metrics, speedup=speedup, factor_occupancy=math.nan))
    assert "ngram γ4" in why_page("demo", [decide(broken.cell, [], broken, [], 0.03)], [broken])


def test_cells_without_evidence_and_sweeps_without_cells_have_a_page_without_figures(tmp_path, confirmed) -> None:
    failed = decide(confirmed.cell, [], None, [], 0.03)
    page = why_page("demo", [failed], [])
    assert "nothing was measured" in page
    assert "Plotly" not in page
    write_why(tmp_path / "why.html", "demo", [], [], [])
    assert "no cell has been decided" in (tmp_path / "why.html").read_text(encoding="utf-8")
