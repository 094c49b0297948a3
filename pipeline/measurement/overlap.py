"""How much of an output its prompt already holds: what prompt lookup lives from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.measurement.identity import prompt_id
from pipeline.measurement.statistics import DECISIVE_UNITS
from pipeline.records.trace import RequestTrace, Trace


def with_overlap(trace: Trace, prompts: Mapping[str, Sequence[int]]) -> Trace:
    """``trace`` with the ``prompt_output_overlap`` of its counted requests; ``prompts`` are tokens by prompt id."""
    requests = (_looked_at(r, prompts[prompt_id(r.request_id)]) if r.counted else r for r in trace.requests)
    return replace(trace, requests=tuple(requests))


def prompt_output_overlap(requests: Iterable[RequestTrace]) -> float | None:
    """The share of all output tokens that end a 3-gram of their prompt; None where nobody looked."""
    known = [(r.prompt_output_overlap, len(r.output)) for r in requests if r.prompt_output_overlap is not None]
    tokens = sum(count for _, count in known)
    return sum(share * count for share, count in known) / tokens if tokens else None


def overlap_acceptance_correlation(requests: Iterable[RequestTrace]) -> float | None:
    """Pearson's correlation, over prompts, of accepted / tested with the overlap.

    None below 8 prompts that had proposals tested, or where one of the two is the same for all.
    """
    by_prompt: dict[str, list[RequestTrace]] = defaultdict(list)
    for request in requests:
        by_prompt[prompt_id(request.request_id)].append(request)
    points = []
    for mine in by_prompt.values():
        overlap, tested = prompt_output_overlap(mine), sum(sum(r.tested) for r in mine)
        if overlap is not None and tested:
            points.append((overlap, sum(sum(r.accepted) for r in mine) / tested))
    if len(points) < DECISIVE_UNITS:
        return None
    table = np.array(points)
    if np.any(np.ptp(table, axis=0) < 1e-12):
        return None
    return float(np.clip(np.corrcoef(table.T)[0, 1], -1.0, 1.0))


def _looked_at(request: RequestTrace, prompt: Sequence[int]) -> RequestTrace:
    """The gram may begin in the prompt: the first output token ends one with the prompt's last two."""
    known = frozenset(_grams(tuple(prompt)))
    found = sum(gram in known for gram in _grams((*prompt[-2:], *request.output)))
    return replace(request, prompt_output_overlap=found / len(request.output))


def _grams(tokens: tuple[int, ...]) -> Iterable[tuple[int, int, int]]:
    return zip(tokens, tokens[1:], tokens[2:], strict=False)
