"""The learning curve of a head as a page of its own, readable without a network."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pipeline.records.head_training import HeadReport


def learning_curve(report: HeadReport) -> str:
    """HTML: loss over steps, and agreement on the watched prompts beside what was reached on the held-out ones."""
    figure = make_subplots(rows=1, cols=2, subplot_titles=("loss", "agreement with the target's greedy token"))
    steps = [look.step for look in report.looks]
    losses = {"learned from": [k.loss for k in report.looks], "watched": [k.watched_loss for k in report.looks]}
    for name, values in losses.items():
        figure.add_trace(go.Scatter(x=steps, y=values, name=name, mode="lines+markers"), row=1, col=1)
    for number in range(len(report.looks[0].watched_agreement)):
        shares = [look.watched_agreement[number] for look in report.looks]
        name = f"watched, draft step {number + 1}"
        figure.add_trace(go.Scatter(x=steps, y=shares, name=name, mode="lines+markers"), row=1, col=2)
    for result in report.results:
        for who, share in (("head", result.head.share), ("n-gram", result.ngram.share)):
            name = f"held-out {result.workload}: {who}"
            ends = [steps[0], steps[-1]]
            figure.add_trace(
                go.Scatter(x=ends, y=[share, share], name=name, mode="lines", line={"dash": "dash"}), row=1, col=2
            )
    figure.update_xaxes(title="step")
    title = f"{report.target.name}: {report.learned_places} places in {report.learned_texts} texts"
    figure.update_layout(title=title, template="plotly_white")
    page: str = figure.to_html(include_plotlyjs=True, full_html=True)
    return page
