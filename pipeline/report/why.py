"""``why.html``: why no cell reaches its ideal speedup, as a page of its own that is readable without a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from pipeline.records.cell import CellKey
from pipeline.records.decision import Decision
from pipeline.records.forecast import CellForecast
from pipeline.records.measurement import Measurement, Metrics
from pipeline.report.gamma_figure import gamma_figure
from pipeline.report.rows import ABSENT, Row, rows, speedup_text
from pipeline.report.why_figure import TO_GEOMETRIC, TO_MEASURED, candidate_name, cell_figure, factor
from pipeline.tracking.atomic import write_atomically

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1300px; padding: 0 1rem; color: #222; }
section { border-top: 1px solid #ccc; margin-top: 2.5rem; }
table { border-collapse: collapse; font-size: 13px; } .wide { overflow-x: auto; }
th, td { padding: .2rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }
th:first-child, td:first-child { text-align: left; } tr.evidence { font-weight: bold; } dt { font-weight: bold; }
.status { border: 1px solid; border-radius: .3rem; padding: 0 .4rem; font-size: 13px; }
.on { color: #2e7d32; } .off { color: #666; } .undecided { color: #b26a00; } .failed { color: #b00020; }
"""

_WORDS = {
    "ideal": "E(α, γ) / (1 + γc): what the formula claims at the measured α and the measured cost c of a draft step, "
    "if a verification took one plain step and nothing else took time.",
    "drafting, verification, overhead": "what the real times make of that: drafting d instead of γc plain steps, "
    "verification v instead of one, overhead h instead of none.",
    "geometric": "E(α, γ) / (d + v + h): independent acceptances at the real times.",
    "proposals": "fewer than γ were made: the draft found nothing, or the output or its limit left no room.",
    "independence": "what was accepted against what acceptances at one rate, each by itself, would give. Below 1 they "
    "come in runs, or become rarer from one proposal to the next.",
    "occupancy": "rows that shared an iteration, against the baseline's; 1 with all slots busy.",
    "✓": "the confirmation, on prompts that the search did not see. α of a bin is accepted / tested.",
}

_EVIDENCE = ' class="evidence"'
_COLUMNS = ("candidate", "ideal", "geometric", "measured", "α", "proposed", "tok/ver", "c", "d", "v", "h")


def write_why(
    path: Path,
    sweep: str,
    decisions: Sequence[Decision],
    measurements: Sequence[Measurement],
    forecasts: Sequence[CellForecast],
) -> None:
    """Replace ``path`` whole. Raises OSError when the disk does not take it."""
    write_atomically(path, why_page(sweep, decisions, measurements, forecasts).encode())


def why_page(
    sweep: str,
    decisions: Sequence[Decision],
    measurements: Sequence[Measurement],
    forecasts: Sequence[CellForecast] = (),
) -> str:
    """HTML: for each decided cell the sentence, the figures, and every candidate side by side."""
    texts = rows(decisions)
    contents = "".join(
        f'<li><a href="#cell{n}">{escape(row.cell)}</a> {_status(row)} {escape(row.why)}</li>'
        for n, row in enumerate(texts)
    )
    expected = {forecast.cell: forecast for forecast in reversed(forecasts)}  # a cell goes by its first one
    plots = _Plots()
    sections = []
    for n, (decision, row) in enumerate(zip(decisions, texts, strict=True)):
        seen = _candidates(decision.cell, measurements)
        evidence = _evidence(decision, seen)
        drawn = "" if evidence is None else plots.html(cell_figure(evidence, seen), f"figure{n}")
        forecast = expected.get(decision.cell)
        by_gamma = "" if forecast is None else plots.html(gamma_figure(forecast, seen), f"gamma{n}")
        sections.append(
            f'<section id="cell{n}"><h2>{escape(row.cell)}</h2><p>{_status(row)} {escape(row.reason)}</p>'
            f"<p>{escape(row.why)}</p>{drawn}{_overlap(evidence)}{by_gamma}{_table(seen, evidence)}</section>"
        )
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in _WORDS.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(sweep)}: why</title>'
        f"<style>{_STYLE}</style></head><body><h1>Why is it not the ideal speedup?</h1><p>Sweep {escape(sweep)}</p>"
        f"<ol>{contents or '<li>no cell has been decided</li>'}</ol>"
        f"<details><summary>what the words mean</summary><dl>{words}</dl></details>{''.join(sections)}</body></html>\n"
    )


class _Plots:
    """Figures of one page: its library, 5 MB, comes with the first."""

    def __init__(self) -> None:
        self._drawn = 0

    def html(self, figure: go.Figure, name: str) -> str:
        self._drawn += 1
        text: str = figure.to_html(
            include_plotlyjs=self._drawn == 1,
            full_html=False,
            div_id=name,
            config={"responsive": True, "displaylogo": False},
        )
        return text


def _candidates(cell: CellKey, measurements: Sequence[Measurement]) -> list[Measurement]:
    """What was measured of the cell, the confirmation first, then the fastest; no A/A, and no parts of a whole."""
    mine = [m for m in measurements if m.cell == cell and m.kind in ("search", "confirmation") and m.candidate.draft]
    return sorted(mine, key=lambda m: (m.kind != "confirmation", -m.metrics.speedup, m.id))


def _evidence(decision: Decision, seen: Sequence[Measurement]) -> Measurement | None:
    """The measurement whose figures the decision shows."""
    for measurement in seen:
        shown = (measurement.candidate.draft, measurement.candidate.gamma, measurement.metrics.speedup)
        if measurement.id == decision.measurement or (
            decision.measurement is None and shown == (decision.draft, decision.gamma, decision.speedup)
        ):
            return measurement
    return None


def _table(seen: Sequence[Measurement], evidence: Measurement | None) -> str:
    if not seen:
        return ""
    headings = (*_COLUMNS, *(f"×{name}" for name in (*TO_GEOMETRIC, *TO_MEASURED)))
    lines = (
        f"<tr{_EVIDENCE if measurement is evidence else ''}>"
        f"{''.join(f'<td>{escape(text)}</td>' for text in _figures(measurement))}</tr>"
        for measurement in seen
    )
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _figures(measurement: Measurement) -> list[str]:
    m = measurement.metrics
    return [
        candidate_name(measurement),
        _times(m.speedup_ideal),
        _times(m.speedup_geometric),
        speedup_text(m.speedup, m.speedup_low, m.speedup_high),
        *map(_number, (m.acceptance_rate, m.proposed_per_iteration, m.emitted_per_verification, m.c, m.d, m.v, m.h)),
        *(_number(factor(m, name)) for name in (*TO_GEOMETRIC, *TO_MEASURED)),
    ]


def _overlap(evidence: Measurement | None) -> str:
    if evidence is None or evidence.metrics.prompt_output_overlap is None:
        return ""
    return f"<p>{escape(_overlap_sentence(evidence.metrics))}</p>"


def _overlap_sentence(metrics: Metrics) -> str:
    found = f"{metrics.prompt_output_overlap:.0%} of the output's tokens end three in a row that the prompt holds"
    correlation = metrics.overlap_acceptance_correlation
    return found + (
        "." if correlation is None else f"; over prompts, α correlates with that share at {correlation:.2f}."
    )


def _status(row: Row) -> str:
    return f'<span class="status {row.status}">{row.status}</span>'


def _times(speedup: float | None) -> str:
    return ABSENT if speedup is None else f"{speedup:.2f}×"


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"
