"""A round's requests, dealt out in blocks."""

from __future__ import annotations

from pipeline.engines.contract import Request
from pipeline.measurement.identity import request_id, seed
from pipeline.measurement.prepare import Prepared, RenderedPrompt
from pipeline.measurement.protocol import Span
from pipeline.records.cell import Cell
from pipeline.records.task import RoundTask

FILLER_SEED = 1 << 20
"""Where the seeds of fillers begin, far from those of counted requests."""


def span_of(task: RoundTask, available: int) -> Span:
    """The prompts that ``task`` takes of ``available`` prepared ones. Raises ValueError if they are not there."""
    distinct = task.prompt_count if task.distinct_prompts is None else task.distinct_prompts
    if task.prompt_count < 1 or not 1 <= distinct <= available - task.first_prompt:
        raise ValueError(
            f"a round of {task.prompt_count} prompts, {distinct} of them distinct, from place {task.first_prompt} on "
            f"does not fit {available} prompts"
        )
    return Span(first=task.first_prompt, count=task.prompt_count, distinct=distinct, offset=task.prompt_offset)


def deal(task: RoundTask, prepared: Prepared) -> tuple[tuple[Request, ...], ...]:
    """The blocks of a round: C counted requests each, then as many fillers as keep all C slots busy to their end.

    Greedy decoding takes each prompt once, a sampled workload each prompt with ``protocol.seeds`` seeds: one after
    another, so that a block holds different prompts. A prompt that comes again brings new seeds. The same requests go
    to every arm.
    """
    cell = task.cell
    span = span_of(task, len(prepared.prompts))
    seeds = 1 if cell.sampling.greedy else task.protocol.seeds
    dealt = [(place, again * seeds + index) for index in range(seeds) for place, again in span.dealt()]
    blocks = []
    for start in range(0, len(dealt), cell.concurrency):
        block = dealt[start : start + cell.concurrency]
        counted = [_request(cell, prepared.prompts[place], index) for place, index in block]
        blocks.append((*counted, *_fillers(task, prepared, after=block[-1][0], counted=len(counted))))
    return tuple(blocks)


def _fillers(task: RoundTask, prepared: Prepared, *, after: int, counted: int) -> list[Request]:
    """Requests that follow the counted ones into free slots.

    A filler runs to its full length N whatever it says, for it has no stops: in at least (N − 1)/(γ + 1) iterations,
    while a counted request lasts at most N − 1. So γ_max + 1 fillers outlast it in each of the other slots.
    """
    slots = task.cell.concurrency
    if slots == 1:
        return []
    count = (slots - 1) * (task.max_gamma + 1) + slots - counted
    prompts = [prepared.prompts[(after + 1 + index) % len(prepared.prompts)] for index in range(count)]
    return [_request(task.cell, prompt, FILLER_SEED + n, counted=False) for n, prompt in enumerate(prompts)]


def _request(cell: Cell, prompt: RenderedPrompt, index: int, *, counted: bool = True) -> Request:
    return Request(
        request_id=request_id(prompt.id, index),
        prompt_id=prompt.id,
        tokens=prompt.tokens,
        max_new_tokens=cell.workload.output_tokens,
        seed=seed(prompt.id, index),
        counted=counted,
        ignore_eos=cell.workload.ignore_eos or not counted,
        stop=cell.workload.stop if counted else (),
        stop_token_ids=cell.workload.stop_token_ids if counted else (),
    )
