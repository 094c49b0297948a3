"""One cell as a figure: from the ideal to the measured speedup, and where acceptance comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipeline.records.measurement import AcceptanceBin, Measurement, Metrics

TO_GEOMETRIC = ("drafting", "verification", "overhead")
TO_MEASURED = ("proposals", "independence", "occupancy")
"""The ``factor_``s of ``Metrics`` that lead from the ideal to the geometric speedup, and from there to the measured."""

_STANDS, _LOSES, _GAINS, _SEEN, CLAIMED = "#4c6a92", "#c8553d", "#5a9367", "#2b2d42", "#9a9a9a"
_WIDTHS = 6
"""Columns of the grid: two panels above take half of them each, three below a third."""


def cell_figure(evidence: Measurement, candidates: Sequence[Measurement]) -> go.Figure:
    """``evidence`` factor by factor and by where its proposals stood, and all ``candidates`` of the cell beside it."""
    figure = make_subplots(
        rows=2,
        cols=_WIDTHS,
        specs=[[{"colspan": 3}, None, None, {"colspan": 3}, None, None], [{"colspan": 2}, None] * 3],
        subplot_titles=(
            f"{evidence.candidate.label}: from ideal to measured",
            "measured candidates: ideal, geometric, measured",
            "acceptance by proposal position",
            "α by output position",
            "α by context length",
        ),
        vertical_spacing=0.2,
        horizontal_spacing=0.06,
    )
    figure.add_trace(_steps(evidence.metrics), row=1, col=1)
    for trace in _side_by_side(candidates):
        figure.add_trace(trace, row=1, col=4)
    for trace in _by_position(evidence):
        figure.add_trace(trace, row=2, col=1)
    figure.add_trace(_by_bin(evidence.by_output_position), row=2, col=3)
    figure.add_trace(_by_bin(evidence.by_context), row=2, col=5)
    for column in (1, 4):
        figure.add_hline(y=1, line={"dash": "dot", "color": CLAIMED}, row=1, col=column)
        figure.update_yaxes(title="speedup", rangemode="tozero", row=1, col=column)
    figure.update_yaxes(range=[0, _highest(candidates)], row=1, col=4)
    for column, title in ((1, "proposal"), (3, "token of the output"), (5, "tokens before it")):
        figure.update_yaxes(range=[0, 1.05], row=2, col=column)
        figure.update_xaxes(title=title, type="category", row=2, col=column)
    figure.update_layout(
        template="plotly_white",
        height=720,
        margin={"l": 50, "r": 20, "t": 50, "b": 90},
        legend={"orientation": "h", "y": -0.12},
        bargap=0.25,
    )
    return figure


def factor(metrics: Metrics, name: str) -> float | None:
    """The factor of that name; None where there is no ideal speedup."""
    value: float | None = getattr(metrics, f"factor_{name}")
    return value


def place(found: AcceptanceBin) -> str:
    """``16–31``."""
    return f"{found.low}–{found.high}"


def _steps(metrics: Metrics) -> go.Bar:
    """Bars that stand are speedups; one that hangs between two heights is what a factor takes or gives."""
    names: list[str] = []
    bars: list[tuple[float, float, str, str]] = []

    def stand(name: str, height: float | None) -> None:
        if height is not None:
            names.append(name)
            bars.append((0.0, height, _STANDS, f"{height:.2f}×"))

    def hang(factors: Sequence[str], height: float | None) -> None:
        for name in factors:
            value = factor(metrics, name)
            if height is not None and value is not None:
                names.append(name)
                bars.append((height, height * (value - 1), _LOSES if value < 1 else _GAINS, f"×{value:.2f}"))
                height *= value

    stand("ideal", metrics.speedup_ideal)
    hang(TO_GEOMETRIC, metrics.speedup_ideal)
    stand("geometric", metrics.speedup_geometric)
    hang(TO_MEASURED, metrics.speedup_geometric)
    stand("measured", metrics.speedup)
    base, heights, colours, texts = zip(*bars, strict=True)
    return go.Bar(
        x=names,
        y=heights,
        base=base,
        text=texts,
        textposition="outside",
        cliponaxis=False,
        marker={"color": colours},
        hovertemplate="%{x}: %{text}<extra></extra>",
        showlegend=False,
    )


def greatest(speedups: Sequence[float | None], measured: Sequence[Measurement]) -> float:
    """How high to draw: all ``speedups``, and intervals as far as they leave them room.

    An interval from three prompts may reach far beyond, and would hide them all.
    """
    points = max([1.0, *(value for value in speedups if value is not None and math.isfinite(value))])
    ends = [m.metrics.speedup_high for m in measured]
    high = max([0.0, *(value for value in ends if value is not None and math.isfinite(value))])
    return max(1.15 * points, min(1.05 * high, 1.6 * points))


def _highest(candidates: Sequence[Measurement]) -> float:
    metrics = [measurement.metrics for measurement in candidates]
    return greatest([s for m in metrics for s in (m.speedup_ideal, m.speedup_geometric, m.speedup)], candidates)


def bounds(metrics: Sequence[Metrics]) -> dict[str, object]:
    """Error bars of measured speedups: their intervals."""
    above = [0.0 if m.speedup_high is None else m.speedup_high - m.speedup for m in metrics]
    below = [0.0 if m.speedup_low is None else m.speedup - m.speedup_low for m in metrics]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}


def _side_by_side(candidates: Sequence[Measurement]) -> list[go.Scatter]:
    labels = [candidate_name(measurement) for measurement in candidates]
    metrics = [measurement.metrics for measurement in candidates]
    measured = [m.speedup for m in metrics]
    return [
        _marks("ideal", labels, [m.speedup_ideal for m in metrics], "triangle-up-open", CLAIMED),
        _marks("geometric", labels, [m.speedup_geometric for m in metrics], "diamond-open", _LOSES),
        _marks("measured", labels, measured, "circle", _SEEN, error_y=bounds(metrics)),
    ]


def candidate_name(measurement: Measurement) -> str:
    """The candidate and, where it is not the search's first look at it, which measurement of it this is."""
    ending = {"search": "", "confirmation": " ✓"}.get(measurement.kind, f" {measurement.kind}")
    again = f" ({measurement.replicate + 1})" if measurement.replicate else ""
    return f"{measurement.candidate.label}{ending}{again}"


def _by_position(evidence: Measurement) -> list[go.Bar | go.Scatter]:
    places = [str(i) for i in range(1, len(evidence.marginal) + 1)]
    alpha = evidence.metrics.acceptance_rate
    claimed = [] if alpha is None else [alpha**i for i in range(1, len(places) + 1)]
    return [
        go.Bar(x=places, y=evidence.marginal, name="accepted with all before it", marker={"color": _STANDS}),
        _marks("accepted if tested", places, evidence.conditional, "circle", _SEEN),
        go.Scatter(
            x=places[: len(claimed)],
            y=claimed,
            name="α^i: independent acceptances",
            mode="lines+markers",
            line={"color": CLAIMED, "dash": "dash"},
        ),
    ]


def _by_bin(bins: Sequence[AcceptanceBin]) -> go.Bar:
    rates = [found.acceptance_rate for found in bins]
    return go.Bar(
        x=[place(found) for found in bins],
        y=rates,
        text=["" if rate is None else f"{rate:.2f}" for rate in rates],
        customdata=[(found.accepted, found.tested, found.row_iterations) for found in bins],
        hovertemplate="%{x}: %{customdata[0]} of %{customdata[1]} tested, %{customdata[2]} blocks<extra></extra>",
        marker={"color": _STANDS},
        showlegend=False,
    )


def _marks(
    name: str, x: Sequence[str], y: Sequence[float | None], symbol: str, colour: str, **more: object
) -> go.Scatter:
    marker = {"symbol": symbol, "color": colour, "size": 9}
    return go.Scatter(x=list(x), y=list(y), name=name, mode="markers", marker=marker, **more)
