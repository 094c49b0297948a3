"""A cell's prompts as token ids, with the answers that later turns of a conversation build on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.engines.contract import OFF, Engine, Request
from pipeline.measurement.identity import digest, request_id, seed
from pipeline.measurement.protocol import allot
from pipeline.records.cell import Cell
from pipeline.records.failure import InputError
from pipeline.records.settings import Protocol
from pipeline.workloads.arrange import arrange
from pipeline.workloads.lengthen import lengthened
from pipeline.workloads.load import load_prompts
from pipeline.workloads.material import read_material
from pipeline.workloads.prompt import Message, Prompt
from pipeline.workloads.render import answered, render


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt ready to decode: ``tokens`` are what the model is given."""

    id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Prepared:
    """A workload's prompts in arranged order, as many as the protocol can use, and the hash of their tokens.

    Tokens, since they hold all that made them: file, chat template, tokenizer, the answers of earlier turns.
    """

    prompts: tuple[RenderedPrompt, ...]
    content_hash: str


def prepare(
    engine: Engine, cell: Cell, protocol: Protocol, progress: Callable[[str], None], max_gamma: int = 0
) -> Prepared:
    """Load, arrange and render the cell's prompts; ``engine`` has the cell's target open.

    Answers that a later turn awaits are the baseline's own, under the cell's sampling. Raises InputError for a workload
    that cannot be used, and for a prompt that is too long for it or for the model with ``max_gamma`` proposals.
    """
    _check_stop_tokens(engine, cell)
    loaded = load_prompts(cell.workload)
    used = allot(len(loaded.prompts), cell.concurrency, protocol, cell.workload.name).end
    prompts = _answer(engine, cell, arrange(loaded.prompts, protocol.shuffle_seed)[:used], progress, max_gamma)
    if cell.workload.context_tokens is not None:
        prompts = _lengthen(engine, cell, prompts, [prompt.id for prompt in loaded.prompts], progress)
    rendered = tuple(_render(engine, cell, prompt, max_gamma) for prompt in prompts)
    return Prepared(prompts=rendered, content_hash=digest([[prompt.id, *prompt.tokens] for prompt in rendered]))


def _answer(
    engine: Engine, cell: Cell, prompts: Sequence[Prompt], progress: Callable[[str], None], max_gamma: int
) -> tuple[Prompt, ...]:
    """``prompts`` with every awaited answer filled in: all first answers at once, then all that follow from them."""
    prompts = tuple(prompts)
    while any(prompt.awaits for prompt in prompts):
        asked: dict[tuple[Message, ...], Request] = {}
        for prompt in prompts:
            if not prompt.awaits:
                continue
            history = prompt.messages[: prompt.awaits[0]]
            if history not in asked:  # turns of one conversation share it, and must share its answer
                rendered = _render(engine, cell, Prompt(prompt.id, history), max_gamma)
                asked[history] = Request(
                    request_id=request_id(prompt.id, 0),
                    prompt_id=prompt.id,
                    tokens=rendered.tokens,
                    max_new_tokens=cell.workload.output_tokens,
                    seed=seed(prompt.id, 0),
                    stop=cell.workload.stop,
                    stop_token_ids=cell.workload.stop_token_ids,
                )
        progress(f"{cell.key.label} · answering {len(asked)} earlier turns")
        trace = engine.run(tuple(asked.values()), cell.sampling, None, OFF)
        answers = {}
        for history, request in zip(asked, trace.requests, strict=True):
            tokens = request.output[:-1] if request.finish in ("eos", "stop") else request.output
            answers[history] = request.text if cell.workload.stop else engine.tokenizer.decode(tokens)
        prompts = tuple(
            answered(prompt, prompt.awaits[0], answers[prompt.messages[: prompt.awaits[0]]])
            if prompt.awaits
            else prompt
            for prompt in prompts
        )
    return prompts


def _lengthen(
    engine: Engine, cell: Cell, prompts: Sequence[Prompt], order: Sequence[str], progress: Callable[[str], None]
) -> tuple[Prompt, ...]:
    """``prompts`` at the workload's length; ``order``: the ids of its file, by which each gets other text.

    Earlier turns were answered as they are: what a request carries along comes with its last turn.
    """
    workload, tokenizer = cell.workload, engine.tokenizer
    progress(f"{cell.key.label} · lengthening {len(prompts)} prompts")
    material = read_material(workload)
    places = {name: place for place, name in enumerate(order)}

    def length_of(prompt: Prompt) -> int:
        return len(render(prompt, cell.target, tokenizer))

    return tuple(
        lengthened(prompt, workload, material.for_prompt(prompt, places[prompt.id]), tokenizer, length_of)
        for prompt in prompts
    )


def _check_stop_tokens(engine: Engine, cell: Cell) -> None:
    vocabulary = engine.facts.vocabulary
    for token in cell.workload.stop_token_ids:
        if token >= vocabulary:
            raise InputError(
                f"workloads.{cell.workload.name}.stop_token_ids: {token} is no token of target {cell.target.name}; "
                f"allowed are 0 to {vocabulary - 1}"
            )


def _render(engine: Engine, cell: Cell, prompt: Prompt, max_gamma: int) -> RenderedPrompt:
    tokens = render(prompt, cell.target, engine.tokenizer)
    workload = cell.workload
    if workload.max_prompt_tokens is not None and len(tokens) > workload.max_prompt_tokens:
        raise InputError(
            f"workload {workload.name}: prompt {prompt.id} has {len(tokens)} tokens, more than its max_prompt_tokens "
            f"{workload.max_prompt_tokens}"
        )
    limit = engine.facts.max_context - workload.output_tokens - max_gamma - 1
    if len(tokens) > limit:
        raise InputError(
            f"workload {workload.name}: prompt {prompt.id} has {len(tokens)} tokens; {cell.target.name} leaves it "
            f"{limit} (context {engine.facts.max_context} - output_tokens {workload.output_tokens} - gamma {max_gamma} "
            f"- 1)"
        )
    return RenderedPrompt(prompt.id, tokens)
