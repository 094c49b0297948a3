"""Whether speculation changes a greedy text on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from pipeline.benchmarks.gpu.decoder import GREEDY, Decoder, requests
from pipeline.benchmarks.gpu.shapes import Scale
from pipeline.benchmarks.rows import EQUAL_UNIT, Row, Wanted, alone
from pipeline.engines.contract import Request
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.proposers.contract import Proposer
from pipeline.engines.decoding.transform import near_tie
from pipeline.records.settings import Protocol
from pipeline.records.trace import Trace

GAMMA = 4
_EQUAL = Wanted("ours", "<=", 0)


def equal_texts(
    decoder: Decoder, scale: Scale, target: CachedModel, proposers: Mapping[str, Proposer], kind: str
) -> Iterator[Row]:
    """Texts of each proposer that leave plain decoding's at a choice that was no near tie, and how many left at one.

    ``proposers`` are made for ``scale.text_slots`` and ``text_columns``. Near is what a sweep's gate calls near.
    """
    asked = mixed(scale, target.vocabulary)
    columns = text_columns(scale)
    plain = decoder.run(target, asked, scale.text_slots, columns)
    bound = Protocol().tie_margin if target.model.dtype == torch.float32 else Protocol().tie_margin_low_precision
    for name, proposer in proposers.items():
        trace = decoder.run(target, asked, scale.text_slots, columns, proposer, GAMMA)
        margins = [
            tie_margin(target, request, mine, reference)
            for request, mine, reference in zip(asked, _outputs(trace), _outputs(plain), strict=True)
            if mine != reference
        ]
        yield alone(f"text_{kind}_{name}", EQUAL_UNIT, "less", [sum(margin > bound for margin in margins)], _EQUAL)
        yield alone(f"ties_{kind}_{name}", "near ties", "less", [sum(margin <= bound for margin in margins)])
        tested = sum(it.tested for it in trace.iterations)
        accepted = sum(it.accepted for it in trace.iterations)
        yield alone(f"accepted_{kind}_{name}", "of tested", "more", [accepted / tested if tested else 0.0])


def mixed(scale: Scale, vocabulary: int) -> list[Request]:
    """More requests than slots, of unequal lengths; half of each prompt repeats, for an n-gram to find."""
    asked = requests(scale.texts, 2 * (scale.prompt // 4), scale.text_tokens, vocabulary, seed=1)
    return [
        replace(
            request,
            tokens=request.tokens[i % 4 :][: len(request.tokens) // 2] * 2,
            max_new_tokens=scale.text_tokens - i % 3,
        )
        for i, request in enumerate(asked)
    ]


def text_columns(scale: Scale) -> int:
    return 2 * (scale.prompt // 4) + scale.text_tokens + GAMMA + 1


def tie_margin(target: CachedModel, request: Request, mine: tuple[int, ...], reference: tuple[int, ...]) -> float:
    """The margin of the first choice at which two texts part."""
    at = next(i for i, (a, b) in enumerate(zip(mine, reference, strict=True)) if a != b)
    with torch.inference_mode():
        logits = target.plain_logits((*request.tokens, *reference[:at])).float()
        return near_tie(logits, GREEDY, 0.0)


def _outputs(trace: Trace) -> list[tuple[int, ...]]:
    return [request.output for request in trace.requests]
