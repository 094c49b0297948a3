"""What is asked of an engine must fit its model, and no stop is ever left out in silence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.engines.contract import Request
from pipeline.engines.stop_strings import REPLACEMENT, Detokenizer
from pipeline.records.failure import InputError


def check_requests(
    requests: Sequence[Request], target: str, longest: int, vocabulary: int, detokenizer: Callable[[], Detokenizer]
) -> None:
    """Raise InputError for the first of ``requests`` that cannot be decoded as it is.

    ``longest``: tokens of context; ``vocabulary``: how many token ids there are; ``detokenizer`` is asked only for a
    request with stop strings.
    """
    for request in requests:
        what = f"request {request.request_id}"
        if not request.tokens:
            raise InputError(f"{what}: its prompt is empty")
        if request.max_new_tokens < 1:
            raise InputError(f"{what}: max_new_tokens is {request.max_new_tokens}, allowed are 1 and more")
        if len(request.tokens) + request.max_new_tokens > longest:
            raise InputError(
                f"{what}: {len(request.tokens)} prompt and {request.max_new_tokens} output tokens "
                f"do not fit in {longest} tokens of context"
            )
        for token in request.stop_token_ids:
            if not 0 <= token < vocabulary:
                raise InputError(f"{what}: stop token id {token}, allowed are 0 to {vocabulary - 1}")
        for stop in request.stop:
            _check_stop(stop, what, target, detokenizer())


def _check_stop(stop: str, what: str, target: str, detokenizer: Detokenizer) -> None:
    if not stop or REPLACEMENT in stop:
        raise InputError(f"{what}: stop string {stop!r} is empty or holds U+FFFD, which half a character reads as")
    if stop in detokenizer.special:
        raise InputError(
            f"{what}: stop string {stop!r} is a special token of {target}, which has no text; "
            f"give its id {detokenizer.special[stop]} as a stop token id"
        )
