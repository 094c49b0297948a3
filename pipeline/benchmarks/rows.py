"""What a benchmark found: figures beside a peer's, what was wanted of them, and on what machine they were measured."""

from __future__ import annotations

import json
import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

Better = Literal["more", "less"]
Relation = Literal[">=", "<=", ">", "<"]

EQUAL_UNIT = "texts differ"
"""Of rows whose 0 says that all texts are equal."""

_RELATIONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True)
class Wanted:
    """A bound on a row's ``ratio`` or on its own figure, ``ours``."""

    figure: Literal["ratio", "ours"]
    relation: Relation
    bound: float

    def __str__(self) -> str:
        return f"{self.figure} {self.relation} {self.bound:g}"

    def met(self, value: float) -> bool:
        return bool(_RELATIONS[self.relation](value, self.bound))


@dataclass(frozen=True)
class Between:
    """Two bounds on a row's own figure, which may reach either."""

    least: float
    greatest: float
    figure: Literal["ours"] = "ours"

    def __str__(self) -> str:
        return f"ours {self.least:g} – {self.greatest:g}"

    def met(self, value: float) -> bool:
        return self.least <= value <= self.greatest


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure. ``ours`` and ``peer_value`` are in ``unit``; ``peer`` says who the peer is, "" for none.

    ``ratio`` says how many times better ours is: ours / peer where more is ``better``, peer / ours where less is.
    ``low`` and ``high`` are its least and greatest value over the repeats, or those of ``ours`` where there is no
    peer. ``wanted`` is "" where nothing is; ``holds`` is None where nothing is wanted or what is wanted needs a peer
    that was not there.
    """

    metric: str
    ours: float
    unit: str
    better: Better
    peer: str
    peer_value: float | None
    ratio: float | None
    low: float
    high: float
    wanted: str
    holds: bool | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run of a benchmark. ``settings``: what it was told and chose; ``conditions``: machine, versions, load.

    ``notes`` say what the rows do not, such as what was left out; ``failures`` what could not be measured, and why.
    """

    benchmark: str
    settings: Mapping[str, str | int | float | None]
    conditions: Mapping[str, str | int | float]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


def compared(
    metric: str,
    unit: str,
    better: Better,
    ours: Sequence[float],
    peer: str,
    theirs: Sequence[float],
    wanted: Wanted | None = None,
) -> Row:
    """A row of two arms measured side by side, a value for each repeat: medians of both and of their ratio."""
    ratios = [a / b if better == "more" else b / a for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    value = statistics.median(ours)
    return Row(
        metric=metric,
        ours=value,
        unit=unit,
        better=better,
        peer=peer,
        peer_value=statistics.median(theirs),
        ratio=ratio,
        low=min(ratios),
        high=max(ratios),
        wanted=str(wanted or ""),
        holds=wanted.met(ratio if wanted.figure == "ratio" else value) if wanted else None,
    )


def alone(metric: str, unit: str, better: Better, ours: Sequence[float], wanted: Wanted | Between | None = None) -> Row:
    """A row without a peer, a value for each repeat."""
    return known(metric, unit, better, statistics.median(ours), min(ours), max(ours), wanted)


def known(
    metric: str,
    unit: str,
    better: Better,
    value: float,
    low: float,
    high: float,
    wanted: Wanted | Between | None = None,
) -> Row:
    """A row without a peer whose bounds are known: an error's, or quartiles."""
    return Row(
        metric=metric,
        ours=value,
        unit=unit,
        better=better,
        peer="",
        peer_value=None,
        ratio=None,
        low=low,
        high=high,
        wanted=str(wanted or ""),
        holds=wanted.met(value) if wanted and wanted.figure == "ours" else None,
    )


def as_json(report: Report) -> bytes:
    """``report`` as a JSON object. Raises ValueError for a figure that is not finite, which JSON cannot say."""
    for row in report.rows:
        if not all(math.isfinite(v) for v in (row.ours, row.low, row.high, row.ratio or 0.0, row.peer_value or 0.0)):
            raise ValueError(f"benchmark {report.benchmark}, row {row.metric}: not finite: {row}")
    return json.dumps(asdict(report), indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
