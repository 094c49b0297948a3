"""Heads that know their target are accepted always if they read the right token and state, and hardly ever if not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_heads import SPECULATORS, eagle3_entries, eagle3_tensors, write_eagle3, write_medusa
from tiny_models import GREEDY, VOCABULARY, WARM, mixed_requests, save, tiny_llama
from torch import Tensor

from pipeline.engines.contract import Limits, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, Eagle3, Medusa, Target


def opened(target: Target, draft: Draft, concurrency: int) -> DecodingEngine:
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    engine.open(target, [draft], Limits(concurrency=concurrency, max_gamma=4))
    return engine


def successor(token: int) -> int:
    return (5 * token + 7) % VOCABULARY


def _chain_target(folder: Path) -> Target:
    """Embeddings are unit vectors and every layer adds nothing, so that each state is the embedding of its token."""
    model = tiny_llama()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(_vectors())
        model.lm_head.weight[[successor(t) for t in range(VOCABULARY)]] = _vectors()
    return Target(name="chain", source=save(model, folder), dtype="float32", chat_template="plain")


def _vectors() -> Tensor:
    """[V, H] unit vectors, far from each other."""
    vectors = torch.randn(VOCABULARY, 32, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.normalize(vectors, dim=-1)


def _chain_head(folder: Path, reads: str) -> Eagle3:
    """``token``: predicts the successor of the token it reads, looking at nothing else. ``state``: what follows that of
    the state's, which is right for one proposal only, for its output is no state of the next token."""
    entries = eagle3_entries(SPECULATORS, {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32})
    tensors = eagle3_tensors(entries)
    for name in tensors:
        if "norm" in name:
            tensors[name] = torch.ones_like(tensors[name])
    zero, one = torch.zeros(32, 32), torch.eye(32)
    tensors["embed_tokens.weight"] = _vectors()
    tensors["layers.0.mlp.down_proj.weight"].zero_()
    steps = (successor,) if reads == "token" else (successor, successor)
    wanted = torch.arange(VOCABULARY)
    for step in steps:
        wanted = torch.tensor([step(int(token)) for token in wanted])
    tensors["lm_head.weight"][wanted] = _vectors()
    if reads == "token":
        entries["norm_before_residual"] = True  # so that the state is added as it is taken away, normed
        tensors["layers.0.self_attn.v_proj.weight"] = torch.cat((one, -one), dim=1)
        tensors["layers.0.self_attn.o_proj.weight"] = one
        entries["transformer_layer_config"] |= {"layer_types": ["sliding_attention"], "sliding_window": 1}  # type: ignore[operator]
    else:
        tensors["fc.weight"] = torch.cat((zero, one, zero), dim=1)
        tensors["layers.0.self_attn.o_proj.weight"].zero_()
    write_eagle3(folder, entries, tensors, SPECULATORS)
    return Eagle3(name="head", source=str(folder))


@pytest.mark.parametrize(("reads", "gamma"), [("token", 4), ("state", 1)])
@pytest.mark.parametrize("sampling", [GREEDY, dataclasses.replace(WARM, top_k=1)], ids=["greedy", "sampled"])
def test_a_head_that_knows_the_target_is_always_accepted(
    tmp_path: Path, reads: str, gamma: int, sampling: object
) -> None:
    target = _chain_target(tmp_path / "target")
    draft = _chain_head(tmp_path / "head", reads)
    requests = [dataclasses.replace(request, ignore_eos=True, stop_token_ids=()) for request in mixed_requests(7)]
    for concurrency, schedule in ((1, Schedule.constant(gamma)), (3, Schedule(((1, gamma), (2, 0), (3, gamma))))):
        trace = opened(target, draft, concurrency).run(requests, sampling, draft, schedule)  # type: ignore[arg-type]
        assert sum(it.proposed for it in trace.iterations) > 20
        assert all(it.accepted == it.proposed for it in trace.iterations)
        row = max(trace.requests, key=lambda row: len(row.output))
        assert all(successor(a) == b for a, b in zip(row.output, row.output[1:], strict=False))


@pytest.mark.parametrize("sampling", [GREEDY, dataclasses.replace(WARM, top_k=1)], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("places", "share"), [(2, 1.0), (1, 0.0), (3, 0.0)])
def test_heads_that_know_the_target_are_accepted_only_two_places_after_what_they_read(
    tmp_path: Path, sampling: object, places: int, share: float
) -> None:
    """A target whose next token depends on its last alone, and head i that knows the token i + ``places`` on."""
    target = _chain_target(tmp_path / "target")
    write_medusa(tmp_path / "head", heads=4)
    path = tmp_path / "head" / "medusa_lm_head.safetensors"
    tensors = {name: torch.zeros_like(tensor) for name, tensor in load_file(path).items()}
    for head in range(4):
        wanted = list(range(VOCABULARY))
        for _ in range(head + places):
            wanted = [successor(token) for token in wanted]
        tensors[f"{head}.1.weight"][wanted] = _vectors()
    save_file(tensors, path)
    draft = Medusa(name="m", source=str(tmp_path / "head"))
    requests = [dataclasses.replace(request, ignore_eos=True, stop_token_ids=()) for request in mixed_requests(7)]
    for concurrency in (1, 3):
        trace = opened(target, draft, concurrency).run(requests, sampling, draft, Schedule(((1, 2), (2, 0), (3, 4))))  # type: ignore[arg-type]
        proposed = sum(it.proposed for it in trace.iterations)
        assert proposed > 20
        assert sum(it.accepted for it in trace.iterations) == share * proposed
