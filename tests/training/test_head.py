"""A new head: what it takes over, and that the engine reads it back as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_chat import FAMILIES, VOCABULARY, tiny_chat
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM

from pipeline.engines.decoding.heads.eagle3 import Eagle3Head
from pipeline.engines.decoding.heads.loading import load_head
from pipeline.engines.decoding.loading import load_target
from pipeline.records.target import Eagle3
from pipeline.training.divergence import Vocabulary
from pipeline.training.head import config_of, entries_for, known_tokens, new_weights, write_head
from pipeline.training.recorder import Choices
from pipeline.training.student import Student
from pipeline.training.teacher import Lesson, TargetParts


def parts_of(folder: Path, family: str) -> TargetParts:
    return TargetParts.of(AutoModelForCausalLM.from_pretrained(tiny_chat(folder, family).source))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_loads_what_was_written_and_drafts_the_same(tmp_path: Path, family: str) -> None:
    target = tiny_chat(tmp_path / "model", family)
    loaded = load_target(target, "cpu")
    parts = TargetParts.of(loaded.model)
    ids = torch.arange(3, VOCABULARY, 2)
    entries = entries_for(parts, (0, 2, 3), len(ids), 40)
    weights = new_weights(config_of(entries, parts), parts, ids, 3, seed=0)
    with torch.no_grad():
        for weight in weights.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    write_head(tmp_path / "head", entries, weights.state_dict(), ids, VOCABULARY)
    head = load_head(Eagle3(name="head", source=str(tmp_path / "head")), loaded, target, "cpu")
    assert isinstance(head, Eagle3Head)
    assert head.states == (0, 2, 3)
    assert head.vocabulary is not None
    assert torch.equal(head.vocabulary.ids, ids)
    head.reserve(1, 12)
    tokens, states = torch.randint(0, VOCABULARY, (1, 8)), torch.randn(1, 8, 3 * parts.hidden_size)
    import numpy as np

    with torch.no_grad():
        drafted = head.run(tokens, head.fuse(states), np.zeros(1, dtype=np.int64))
        taught = Student(config_of(entries, parts), weights, parts.embeddings).unroll(tokens, states, 1)[0]
    torch.testing.assert_close(drafted, taught, atol=1e-4, rtol=1e-4)


def test_a_llama_s_last_layer_is_taken_over(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, "llama")
    ids = torch.arange(5, 25)
    config = config_of(entries_for(parts, (1, 2, 3), 20, 60), parts)
    weights = new_weights(config, parts, ids, 3, seed=0)
    layer, given = weights.layers[0], parts.last_layer
    assert torch.equal(weights.lm_head.weight, parts.output[ids])
    assert torch.equal(layer.self_attn.q_proj.weight[:, 32:], given["self_attn.q_proj.weight"])
    assert torch.equal(layer.hidden_norm.weight, given["input_layernorm.weight"])
    assert torch.equal(layer.mlp.up_proj.weight[:48], given["mlp.up_proj.weight"])
    assert not layer.mlp.down_proj.weight[:, 48:].any()  # what the target's layer has not, adds nothing at first
    assert all(torch.isfinite(weight).all() for weight in weights.parameters())


def test_another_family_s_layer_is_left_where_it_is(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, "gpt2")
    assert parts.last_layer == {}
    assert parts.norm is None
    weights = new_weights(config_of(entries_for(parts, (1,), 9, None), parts), parts, torch.arange(9), 1, seed=0)
    assert not weights.layers[0].mlp.down_proj.weight.any()


def test_a_norm_that_keeps_its_scale_less_one_gives_its_scale() -> None:
    config = Gemma2Config(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8
    )
    model = Gemma2ForCausalLM(config)
    with torch.no_grad():
        model.model.norm.weight.fill_(0.25)
    parts = TargetParts.of(model)
    assert parts.norm is not None
    torch.testing.assert_close(parts.norm, torch.full((32,), 1.25), atol=1e-4, rtol=1e-4)


def test_the_same_seed_is_the_same_head_and_leaves_the_generator_alone(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, "llama")
    config = config_of(entries_for(parts, (1, 2), 9, None), parts)
    torch.manual_seed(4)
    before = torch.get_rng_state()
    one, same, other = (new_weights(config, parts, torch.arange(9), 2, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.fc.weight, same.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)


def test_the_tokens_used_most_are_known_then_those_learned_first() -> None:
    ids = torch.tensor([[7, 3], [7, 9]], dtype=torch.int32)
    logits = torch.tensor([[5.0, 0.0], [5.0, 4.0]])
    lesson = Lesson(torch.tensor([30, 31, 7], dtype=torch.int32), 0, torch.zeros(2, 2), Choices(ids, logits))
    assert known_tokens([lesson], 40, 1).tolist() == [7]
    assert known_tokens([lesson], 40, 3).tolist() == [7, 30, 31]
    assert known_tokens([lesson], 40, 7).tolist() == [0, 1, 3, 7, 9, 30, 31]
    assert len(known_tokens([lesson], 40, 99)) == 40


def test_tokens_have_the_head_s_own_numbers() -> None:
    vocabulary = Vocabulary(torch.tensor([2, 5, 7]), 9)
    assert vocabulary.own(torch.tensor([5, 2, 3, 7])).tolist() == [1, 0, -1, 2]
