"""Which draft at which γ: what every candidate of a cell was forecast to give, and what the measured ones gave."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from pipeline.records.forecast import CellForecast, Forecast
from pipeline.records.measurement import Measurement
from pipeline.report.why_figure import CLAIMED, bounds, candidate_name, greatest

_COLOURS = ("#4c6a92", "#c8553d", "#5a9367", "#8a5a9e", "#b5892f", "#3a9b9b", "#7a7a7a", "#a34a6f")


def gamma_figure(forecast: CellForecast, measured: Sequence[Measurement]) -> go.Figure:
    """A line a draft through its forecasts, and the ``measured`` candidates with their intervals.

    Forecasts are of the search's prompts and a confirmation is of others, so that the two differ by more than noise.
    """
    drafts = sorted({f.candidate.draft.name for f in forecast.forecasts if f.candidate.draft is not None})
    drafts += sorted({m.candidate.draft.name for m in measured if m.candidate.draft is not None} - set(drafts))
    figure = go.Figure()
    for n, draft in enumerate(drafts):
        colour = _COLOURS[n % len(_COLOURS)]
        expected = [f for f in forecast.forecasts if f.candidate.draft is not None and f.candidate.draft.name == draft]
        if expected:
            figure.add_trace(_line(draft, sorted(expected, key=lambda f: f.candidate.gamma), colour))
        found = [m for m in measured if m.candidate.draft is not None and m.candidate.draft.name == draft]
        if found:
            figure.add_trace(_points(draft, found, colour))
    figure.add_hline(y=1, line={"dash": "dot", "color": CLAIMED})
    highest = greatest([*(f.speedup for f in forecast.forecasts), *(m.metrics.speedup for m in measured)], measured)
    figure.update_yaxes(title="speedup", range=[0, highest])
    figure.update_xaxes(title="γ", dtick=1)
    figure.update_layout(
        template="plotly_white",
        title={"text": "forecast and measured speedup by γ", "x": 0.5, "font": {"size": 16}},
        height=380,
        margin={"l": 50, "r": 20, "t": 50, "b": 50},
        legend={"orientation": "h", "y": -0.2},
    )
    return figure


def _line(draft: str, forecasts: Sequence[Forecast], colour: str) -> go.Scatter:
    return go.Scatter(
        x=[f.candidate.gamma for f in forecasts],
        y=[f.speedup for f in forecasts],
        customdata=[(_percent(f.error), _percent(f.spread), f.method) for f in forecasts],
        hovertemplate="γ%{x}: %{y:.2f}× by %{customdata[2]}; standard error: of the forecast %{customdata[0]}, "
        "of the prompts %{customdata[1]}",
        name=f"{draft}, forecast",
        mode="lines+markers",
        marker={"symbol": "circle-open", "size": 7},
        line={"color": colour, "dash": "dot"},
    )


def _points(draft: str, measured: Sequence[Measurement], colour: str) -> go.Scatter:
    return go.Scatter(
        x=[m.candidate.gamma for m in measured],
        y=[m.metrics.speedup for m in measured],
        error_y=bounds([m.metrics for m in measured]),
        text=[_said(m) for m in measured],
        hovertemplate="%{text}: %{y:.2f}×",
        name=f"{draft}, measured",
        mode="markers",
        marker={
            "color": colour,
            "size": 10,
            "symbol": [_symbol(m) for m in measured],
        },
    )


def _symbol(measurement: Measurement) -> str:
    """What was raced out is of fewer prompts."""
    if measurement.metrics.raced_out:
        return "x-open"
    return "star" if measurement.kind == "confirmation" else "circle"


def _said(measurement: Measurement) -> str:
    metrics = measurement.metrics
    dropped = ", surely behind and not measured to its end" if metrics.raced_out else ""
    return f"{candidate_name(measurement)}, {metrics.units} prompts, at {100 * metrics.interval_level:.4g} %{dropped}"


def _percent(error: float | None) -> str:
    """Of a standard error of log S."""
    return "unknown" if error is None or not math.isfinite(error) else f"{math.expm1(error):.1%}"
