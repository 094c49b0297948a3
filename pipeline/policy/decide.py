"""From measurements to a decision for one cell, with the reason in one sentence."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from pipeline.measurement.constraints import Check, broken, unfit
from pipeline.measurement.protocol import LOOKS
from pipeline.measurement.statistics import decisive, log_ratio
from pipeline.measurement.student import t_quantile
from pipeline.policy.explain import sentence
from pipeline.records.cell import CellKey
from pipeline.records.decision import Decision, Status
from pipeline.records.failure import Failure
from pipeline.records.forecast import CellForecast, Forecast
from pipeline.records.measurement import Measurement, Metrics
from pipeline.records.settings import NO_LIMITS, Constraints
from pipeline.records.target import Candidate, has_extra_weights

FEWEST_FORECAST_PROMPTS = 3
INDIFFERENCE = math.log(1.01)
"""Candidates this near to the best, on log S, are equal whatever their noise."""


def choose(measurements: Sequence[Measurement], broke: Collection[Candidate] = ()) -> Measurement | None:
    """The search's winner: the greatest speedup; of its equals the one that costs a server least.

    Equal to the best is what lies within max(1 %, one standard error of the paired difference) of it. Of equals the
    first has no extra weights, then the smaller γ, then the earlier name. A/A, figures that are not finite, what was
    raced out, whose prompts were fewer, and what ``broke`` a limit take no part. None when nothing does.
    """
    running = [
        m
        for m in measurements
        if m.candidate.draft is not None
        and 0 < m.metrics.speedup < math.inf
        and not m.metrics.raced_out
        and m.candidate not in broke
    ]
    if not running:
        return None
    best = min(running, key=lambda m: (-m.metrics.speedup, _cost(m)))
    return min((m for m in running if m is best or _equals(best, m)), key=_cost)


def fair_speedup(measurement: Measurement, measured: Sequence[Measurement]) -> float:
    """S as it compares with the best of ``measured``: that of what was raced out is of fewer prompts, maybe easy ones.

    S_best · (S/S_best over the prompts in common).
    """
    whole = [m for m in measured if not m.metrics.raced_out and m.cell == measurement.cell]
    if not measurement.metrics.raced_out or not whole:
        return measurement.metrics.speedup
    best = max(whole, key=lambda m: m.metrics.speedup)
    return best.metrics.speedup * math.exp(log_ratio(measurement, best)[0])


def verdict(measurement: Measurement, margin: float) -> Literal["on", "off"] | None:
    """``on``: surely faster than 1 + margin. ``off``: surely no faster than that. None: the interval cannot tell.

    Below 8 units the interval is not to be trusted, so nothing is decided.
    """
    low, high = _finite(measurement.metrics.speedup_low), _finite(measurement.metrics.speedup_high)
    if low is None or high is None or not decisive(measurement.metrics):
        return None
    if low > 1 + margin:
        return "on"
    return "off" if high <= 1 + margin else None


def far_below(forecast: CellForecast) -> Forecast | None:
    """The best forecast, if no forecast's upper limit (99 %, of its own error and of the prompts) reaches 1.

    None where there is hope, or nothing is forecast, or a forecast rests on fewer than 3 prompts.
    """
    if not forecast.forecasts or forecast.prompts < FEWEST_FORECAST_PROMPTS:
        return None
    highest = max(_forecast_limits(f, forecast.prompts)[1] for f in forecast.forecasts)
    return max(forecast.forecasts, key=lambda f: f.speedup) if highest < 1 else None


def _forecast_limits(forecast: Forecast, prompts: int) -> tuple[float, float]:
    """Bounds of S, each at 99 %."""
    if forecast.spread is None:
        return 0.0, math.inf
    half = t_quantile(0.99, prompts - 1) * math.hypot(forecast.error, forecast.spread)
    return forecast.speedup * math.exp(-half), forecast.speedup * math.exp(half)


def off_by_forecast(cell: CellKey, forecast: CellForecast, best: Forecast) -> Decision:
    """``off`` without a measurement: nothing that is forecast comes near 1."""
    low, high = _forecast_limits(best, forecast.prompts)
    steps = best.tau_spec_ms / forecast.tau0_ms
    reason = (
        f"not measured: {best.candidate.label} is forecast best at {_times(best.speedup)} ({low:.2f}–{high:.2f}, 98 %) "
        f"from plain decoding of {forecast.prompts} prompts, too far below 1 to measure: an iteration would give "
        f"{best.speedup * steps:.2f} tokens and take {steps:.2f} plain steps"
    )
    return Decision(
        cell=cell,
        status="off",
        speculate=False,
        draft=best.candidate.draft,
        gamma=best.candidate.gamma,
        speedup=best.speedup,
        speedup_low=low,
        speedup_high=high,
        acceptance_rate=best.acceptance_rate,
        emitted_per_verification=best.emitted_per_verification,
        tau0_ms=forecast.tau0_ms,
        tau_spec_ms=best.tau_spec_ms,
        reason=reason,
        measurement=None,
    )


def decide(
    cell: CellKey,
    search: Sequence[Measurement],
    confirmation: Measurement | None,
    failures: Sequence[Failure],
    margin: float,
    out_of_budget: bool = False,
    constraints: Constraints = NO_LIMITS,
    others: Sequence[Measurement] = (),
    plain: Mapping[str, float | None] | None = None,
) -> Decision:
    """The decision of ``cell``. Only a confirmation that keeps to ``constraints`` turns speculation on.

    Without one, what the search saw last is shown as evidence, but its interval only ranks: the cell is ``off`` when
    even the best candidate's whole interval lies below 1, else ``undecided``. ``failed`` when the cell itself failed or
    nothing could be measured. ``margin`` is the gain over 1 that a speedup must surely have.

    ``confirmation`` is the best within the limits, if there is one; else the cell is ``off``, unless the budget ended
    before all candidates had been tried. ``others`` may hold further confirmations: a faster candidate that broke a
    limit is named beside the one that did not. ``plain`` has what plain decoding takes of what limits bound, by name.
    """
    decided = None if confirmation is None else verdict(confirmation, margin)
    breaks = () if confirmation is None else broken(confirmation.metrics, constraints)
    cut_short = out_of_budget and constraints != NO_LIMITS
    if confirmation is not None and decided == "on" and not breaks and cut_short and len(confirmation.parts) < LOOKS:
        reason = f"{confirmation.candidate.label}: {_interval(confirmation)}{_prompts(confirmation)}; the budget ended "
        reason += "before the rest, over all of which limits are judged"
        return _decision(cell, "undecided", confirmation, reason, confirmation.id)
    if confirmation is not None and decided is not None and (decided == "off" or not breaks):
        reason = _confirmed(confirmation, decided, margin, _faster(confirmation, (*others, *search), constraints))
        return _decision(cell, decided, confirmation, reason, confirmation.id)
    if lost := next((failure for failure in failures if failure.candidate is None), None):
        reason = f"the cell failed: {_said(lost)}"
        evidence = confirmation or choose(search)
        return _decision(cell, "failed", evidence, reason, None if confirmation is None else confirmation.id)
    if confirmation is not None and breaks and (decided == "on" or not out_of_budget):
        found = f"{confirmation.candidate.label} was best at {_interval(confirmation)}{_prompts(confirmation)}"
        ending, status = _after_broken(len({m.candidate for m in others}), out_of_budget)
        return _decision(
            cell, status, confirmation, f"{found}, but {_listed(breaks, plain or {})}{ending}", confirmation.id
        )
    if confirmation is not None:
        reason = _unclear(confirmation, margin, out_of_budget)
        reason += _faster(confirmation, (*others, *search), constraints)
        return _decision(cell, "undecided", confirmation, reason, confirmation.id)
    best = choose(search, unfit(search, constraints))
    if best is not None:
        status, reason = _from_search(best, out_of_budget)
        return _decision(cell, status, best, reason, None)
    if (best := choose(search)) is not None:
        found = f"{best.candidate.label} was best at {_interval(best)} in the search"
        ending = "; the budget ended before a confirmation" if out_of_budget else "; no confirmation was made"
        reason = f"{found}, but {_listed(broken(best.metrics, constraints), plain or {})}{ending}"
        return _decision(cell, "undecided", best, reason, None)
    if out_of_budget:
        return _decision(cell, "undecided", None, "the budget ended before anything was measured", None)
    return _decision(cell, "failed", None, _nothing_ran(failures), None)


def _cost(measurement: Measurement) -> tuple[bool, int, str, str]:
    """What a server pays for the candidate; the names make the order complete."""
    draft, gamma = measurement.candidate.draft, measurement.candidate.gamma
    return (draft is not None and has_extra_weights(draft), gamma, measurement.candidate.label, measurement.id)


def _equals(best: Measurement, other: Measurement) -> bool:
    gap, error = log_ratio(best, other)
    # Too few prompts in common, or other conditions: no paired test can be made, and noise excuses nothing.
    if math.isinf(error) or not best.provenance.same_conditions(other.provenance):
        error = 0.0
    return gap <= max(INDIFFERENCE, error)


def _decision(
    cell: CellKey, status: Status, evidence: Measurement | None, reason: str, confirmation: str | None
) -> Decision:
    def figure(name: str) -> float | None:
        return None if evidence is None else _finite(getattr(evidence.metrics, name))

    return Decision(
        cell=cell,
        status=status,
        speculate=status == "on",
        draft=None if evidence is None else evidence.candidate.draft,
        gamma=0 if evidence is None else evidence.candidate.gamma,
        speedup=figure("speedup"),
        speedup_low=figure("speedup_low"),
        speedup_high=figure("speedup_high"),
        acceptance_rate=figure("acceptance_rate"),
        emitted_per_verification=figure("emitted_per_verification"),
        tau0_ms=figure("tau0_ms"),
        tau_spec_ms=figure("tau_spec_ms"),
        reason=reason,
        measurement=confirmation,
        why="" if evidence is None else sentence(evidence.metrics),
    )


def _confirmed(confirmation: Measurement, status: Literal["on", "off"], margin: float, faster: str) -> str:
    if status == "on":
        return f"measured {_interval(confirmation)}{_prompts(confirmation)}{_economy(confirmation.metrics)}{faster}"
    within = " within the limits" if faster else ""
    least = f", and below {1 + margin:.2f} it does not pay" if confirmation.metrics.speedup > 1 else ""
    return (
        f"{confirmation.candidate.label} was best{within} at {_interval(confirmation)}{_prompts(confirmation)}{least}"
        f"{_economy(confirmation.metrics)}{faster}"
    )


def _unclear(confirmation: Measurement, margin: float, out_of_budget: bool) -> str:
    label, metrics = confirmation.candidate.label, confirmation.metrics
    ending = "; the budget ended before more could be measured" if out_of_budget else ""
    low, high = _finite(metrics.speedup_low), _finite(metrics.speedup_high)
    if low is None or high is None:
        return f"{label}: measured {_times(metrics.speedup)}{_prompts(confirmation)}, which give no interval{ending}"
    if not decisive(metrics):
        return f"{label}: {_interval(confirmation)}{_prompts(confirmation)}, too few to decide on{ending}"
    return (
        f"{label}: the interval {low:.2f}–{high:.2f} ({_percent(metrics)}){_prompts(confirmation)} includes "
        f"{1 + margin:.2f}, the least that pays{ending}"
    )


def _after_broken(confirmed: int, out_of_budget: bool) -> tuple[str, Status]:
    """How the reason ends where all that were ``confirmed`` broke a limit, and what that makes of the cell."""
    if out_of_budget:
        return "; the budget ended before one within the limits was found", "undecided"
    return (f"; none of the {confirmed} that were confirmed keeps to the limits" if confirmed > 1 else ""), "off"


def _faster(kept: Measurement, others: Sequence[Measurement], constraints: Constraints) -> str:
    """The fastest of ``others`` that gains, more than ``kept``, but broke a limit; empty if there is none."""
    ahead = [
        m
        for m in others
        if max(1.0, kept.metrics.speedup) < m.metrics.speedup < math.inf
        and not m.metrics.raced_out
        and m.candidate != kept.candidate
    ]
    best = max((m for m in ahead if broken(m.metrics, constraints)), key=lambda m: m.metrics.speedup, default=None)
    if best is None:
        return ""
    breaks = _listed(broken(best.metrics, constraints), {})
    return f"; {best.candidate.label} is faster at {_times(best.metrics.speedup)}, but {breaks}"


def _listed(breaks: Sequence[Check], plain: Mapping[str, float | None]) -> str:
    return " and ".join(check.said(plain.get(check.name)) for check in breaks)


def _from_search(best: Measurement, out_of_budget: bool) -> tuple[Status, str]:
    found = f"{best.candidate.label} was best at {_interval(best)} in the search"
    if out_of_budget:
        return "undecided", f"the budget ended before a confirmation; {found}"
    high = _finite(best.metrics.speedup_high)
    if high is not None and high < 1:
        return "off", f"{found}, too far below 1 to confirm{_economy(best.metrics)}"
    return "undecided", f"{found}, which only ranks, and no confirmation was made"


def _nothing_ran(failures: Sequence[Failure]) -> str:
    if not failures:
        return "nothing was measured"
    first = failures[0]
    label = first.candidate.label if first.candidate is not None else "the round"
    more = f" ({len(failures)} candidates failed, this one first)" if len(failures) > 1 else ""
    return f"no candidate could be measured: {label}: {_said(first)}{more}"


def _said(failure: Failure) -> str:
    where = f" on {failure.worker}" if failure.worker else ""
    return f"{failure.kind.replace('_', ' ')}{where}: {' '.join(failure.message.split())}"


def _interval(measurement: Measurement) -> str:
    """``1.42× (1.31–1.53, 98.3 %)``."""
    metrics = measurement.metrics
    low, high = _finite(metrics.speedup_low), _finite(metrics.speedup_high)
    bounds = "" if low is None or high is None else f" ({low:.2f}–{high:.2f}, {_percent(metrics)})"
    return f"{_times(metrics.speedup)}{bounds}"


def _prompts(confirmation: Measurement) -> str:
    return f" on {confirmation.metrics.units} fresh prompts"


def _economy(metrics: Metrics) -> str:
    """What an iteration gives and what it takes, in plain decoding steps: why the speedup is what it is.

    The tokens are those that S implies, of all iterations, the ones that an output limit cut short too: their ratio to
    the steps is S.
    """
    tau0, tau_spec = _finite(metrics.tau0_ms), _finite(metrics.tau_spec_ms)
    if not tau_spec or not tau0:
        return ""
    steps = tau_spec / tau0
    return f": an iteration gives {metrics.speedup * steps:.2f} tokens and takes {steps:.2f} plain steps"


def _percent(metrics: Metrics) -> str:
    """In as many digits as tell a level from certainty: ``98.7 %``, ``99.96 %``."""
    percent = 100 * metrics.interval_level
    return f"{next((shown for n in range(1, 12) if (shown := round(percent, n)) < 100), percent):.12g} %"


def _times(speedup: float) -> str:
    return f"{speedup:.2f}×"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
