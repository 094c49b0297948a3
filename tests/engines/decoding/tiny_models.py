"""Tiny random models for the engine's tests, and requests for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from pipeline.engines.contract import Request
from pipeline.records.cell import Sampling
from pipeline.records.trace import Trace

VOCABULARY = 61
EOS = 2
GREEDY = Sampling(name="greedy")
WARM = Sampling(name="warm", temperature=0.8, top_k=20, top_p=0.95)


def tiny_llama(seed: int = 0, layers: int = 4, vocabulary: int = VOCABULARY, noise: float = 0.0) -> PreTrainedModel:
    """Random weights large enough that greedy text is not one token repeated; 2 query heads share a K/V head.

    ``noise`` is added to all weights, from another seed: a draft that agrees with its target often, not always.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    torch.manual_seed(seed + 1000)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * noise)
    return model


def save(model: PreTrainedModel, folder: Path) -> str:
    """Write ``model`` with a tokenizer of one token per id, as a team's own folder would be."""
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(VOCABULARY - 1)} | {"<|endoftext|>": VOCABULARY - 1}  # Qwen adds it if missing
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), bos_token="w1", eos_token=f"w{EOS}"
    )
    tokenizer.save_pretrained(folder)
    return str(folder)


def generated(model: PreTrainedModel, request: Request, repetition_penalty: float = 1.0) -> tuple[int, ...]:
    """transformers' own greedy continuation, cut where the request's stops and EOS setting cut it."""
    prompt = torch.tensor([request.tokens])
    ends = [*request.stop_token_ids] if request.ignore_eos else [EOS, *request.stop_token_ids]
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        repetition_penalty=repetition_penalty,
        max_new_tokens=request.max_new_tokens,
        eos_token_id=ends or [-1],
        pad_token_id=0,
    )
    return tuple(out[0, len(request.tokens) :].tolist())


def mixed_requests(count: int = 9, seed: int = 3) -> list[Request]:
    """Prompts of unequal length, some of which repeat themselves, with different output lengths, stops and seeds."""
    draws = torch.Generator().manual_seed(seed)
    requests = []
    for i in range(count):
        words = torch.randint(3, VOCABULARY, (4 + 7 * (i % 4),), generator=draws).tolist()
        requests.append(
            Request(
                request_id=f"r{i}",
                prompt_id=f"p{i}",
                tokens=tuple(words * (1 + i % 3)),
                max_new_tokens=(50, 17, 1, 33, 2)[i % 5],
                seed=100 + i,
                ignore_eos=i % 2 == 0,
                stop_token_ids=() if i % 3 else (5, 9, 11),
            )
        )
    return requests


def outputs(trace: Trace) -> dict[str, tuple[int, ...]]:
    return {request.request_id: request.output for request in trace.requests}


def accepted(trace: Trace) -> int:
    return sum(iteration.accepted for iteration in trace.iterations)


def assert_counts_hold(trace: Trace, requests: Sequence[Request]) -> None:
    """The integer identities of any run, by iteration and by request."""
    for it in trace.iterations:
        assert it.emitted == it.active + it.accepted - it.stopped
        assert it.accepted <= it.tested <= it.proposed <= it.gamma * it.active
        assert it.tau_ms == it.tau_draft_ms + it.tau_verify_ms + it.tau_overhead_ms
        assert 0 <= it.counted <= it.active
        assert 0.0 <= it.pad_fraction < 1.0
    by_id = {request.request_id: request for request in requests}
    rows: dict[int, list[int]] = {index: [0] * 5 for index in range(len(trace.iterations))}
    for row in trace.requests:
        asked = by_id[row.request_id]
        assert len(row.output) == 1 + sum(row.emitted) <= asked.max_new_tokens
        room = asked.max_new_tokens - 2
        for i, (left, *counts) in enumerate(
            zip(row.room, row.proposed, row.tested, row.accepted, row.emitted, strict=True)
        ):
            proposed, tested, taken, emitted = counts
            assert left == room
            room -= emitted
            assert taken <= tested <= min(taken + 1, proposed)
            assert emitted in (taken, taken + 1)
            for k, value in enumerate((1, *counts)):
                rows[row.first_iteration + i][k] += value
    for index, it in enumerate(trace.iterations):
        assert rows[index] == [it.active, it.proposed, it.tested, it.accepted, it.emitted]
