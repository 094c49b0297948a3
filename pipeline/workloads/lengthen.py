"""Prompts of a given length: real text goes before the question, as in a request that carries documents along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipeline.engines.contract import Tokenizer
from pipeline.records.cell import Workload
from pipeline.records.failure import InputError
from pipeline.workloads.prompt import Message, Prompt

_HEADING = "Reference material:\n\n"
_RULE = "\n\n---\n\n"
_CHARACTERS = 8
"""Of text tried for each token that is wanted, at first."""
_TRIES = 16


def lengthened(
    prompt: Prompt, workload: Workload, text: str, tokenizer: Tokenizer, length_of: Callable[[Prompt], int]
) -> Prompt:
    """``prompt`` with a beginning of ``text`` before its last message, so that it has ``workload.context_tokens``.

    ``length_of``: tokens of a rendered prompt. The text ends with a token, at the one that gives exactly that length or
    comes nearest from below: tokens may merge where texts meet. A prompt that leaves no room for a heading stays as it
    is. Raises InputError for a prompt that is longer already, and for too little text.
    """
    wanted = workload.context_tokens
    if wanted is None:
        return prompt
    what = f"workload {workload.name}: prompt {prompt.id}"
    bare = length_of(prompt)
    if bare > wanted:
        raise InputError(f"{what} has {bare} tokens, more than its context_tokens {wanted}; give a greater length")
    room = wanted - length_of(_carrying(prompt, _HEADING + _RULE))
    if room < 1:
        return prompt

    tokens = _first_tokens(text, room, tokenizer)
    best, best_length = prompt, bare
    count, tried = room, set[int]()
    while len(tried) < _TRIES and 0 < count <= len(tokens) and count not in tried:
        tried.add(count)
        cut = text[: len(tokenizer.decode(tokens[:count]))]
        candidate = _carrying(prompt, _HEADING + cut + _RULE)
        length = length_of(candidate)
        if best_length < length <= wanted:
            best, best_length = candidate, length
        if length == wanted:
            break
        count += wanted - length
        if count > len(tokens):
            tokens = _first_tokens(text, count, tokenizer)
    if count > len(tokens):
        source = f"in {workload.context_path}" if workload.context_path else "that comes with the product"
        raise InputError(
            f"{what}: the text {source} is too short to lengthen it to {wanted} tokens; "
            "name a longer plain text file as context_path"
        )
    return best


def _carrying(prompt: Prompt, text: str) -> Prompt:
    """``prompt`` with ``text`` before what the user says last."""
    *before, last = prompt.messages
    return replace(prompt, messages=(*before, Message(last.role, text + last.content)))


def _first_tokens(text: str, least: int, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a beginning of ``text`` that has some more than ``least`` of them, or of all of it."""
    characters = _CHARACTERS * least
    while True:
        tokens = tokenizer.encode(text[:characters], add_special_tokens=False)
        if len(tokens) > least + _TRIES or characters >= len(text):
            return tokens
        characters *= 2
