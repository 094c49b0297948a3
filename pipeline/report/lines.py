"""What happened, in one line: the same words on a live display and in a log."""

from __future__ import annotations

from pipeline.records.decision import Decision
from pipeline.records.measurement import Measurement
from pipeline.report.rows import speedup_text

_KINDS = {"search": "", "confirmation_look": " (confirming)", "confirmation": " (confirmation)", "aa": " (A/A)"}


def measured_line(measurement: Measurement) -> str:
    """``smollm2 · chat · greedy · C1: ngram γ4 1.42× (1.31–1.53), α 0.61, 2.10 tokens per verification``."""
    metrics = measurement.metrics
    parts = [
        f"{measurement.cell.label}: {measurement.candidate.label}{_KINDS[measurement.kind]} "
        f"{speedup_text(metrics.speedup, metrics.speedup_low, metrics.speedup_high)}"
    ]
    if metrics.acceptance_rate is not None:
        parts.append(f"α {metrics.acceptance_rate:.2f}")
    if metrics.emitted_per_verification is not None:
        parts.append(f"{metrics.emitted_per_verification:.2f} tokens per verification")
    return ", ".join(parts)


def decided_line(decision: Decision) -> str:
    """``smollm2 · chat · greedy · C1: on: …why``."""
    return f"{decision.cell.label}: {decision.status}: {decision.reason}"
