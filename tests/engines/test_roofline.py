"""What a forward costs: known sizes of known models, and how cost moves with width, context and batch."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.devices import DEVICES
from pipeline.engines.roofline import (
    bytes_read,
    drafting_ms,
    experts_read,
    flops_per_token,
    forward_ms,
    kv_bytes_per_token,
    weight_bytes,
)
from pipeline.records.shape import ModelShape
from pipeline.records.target import DraftModel, Eagle3, EarlyExit, Medusa, Ngram

NAMES = [field.name for field in fields(ModelShape) if field.name != "tie_word_embeddings"]


def shape(*numbers: int, tied: bool = False) -> ModelShape:
    return ModelShape(**dict(zip(NAMES, numbers, strict=False)), tie_word_embeddings=tied)


SMOL = shape(30, 576, 1536, 9, 3, 64, 49152, tied=True)
LLAMA_8B = shape(32, 4096, 14336, 32, 8, 128, 128256)
MIXTURE = shape(48, 2048, 768, 32, 4, 128, 151936, 128, 8)
SMALL = shape(28, 1024, 3072, 16, 8, 128, 151936, tied=True)

shapes = st.builds(
    lambda layers, hidden, inner, kv, group, dim, vocab, experts, tied: shape(
        layers, hidden, inner, kv * group, kv, dim, vocab, experts, max(1, experts // 8) * bool(experts), tied=tied
    ),
    *(st.integers(1, 80), st.integers(64, 8192), st.integers(64, 16384), st.integers(1, 8), st.integers(1, 8)),
    *(st.sampled_from([64, 128]), st.integers(256, 200_000), st.sampled_from([0, 8, 128]), st.booleans()),
)
devices = st.sampled_from(sorted(DEVICES.values(), key=lambda device: device.name))
dtypes = st.sampled_from(["float32", "bfloat16"])


def test_weights_of_published_models_are_what_their_cards_say():
    assert weight_bytes(SMOL, "float32") == 4 * 134_515_008
    assert weight_bytes(LLAMA_8B, "bfloat16") == 2 * 8_030_261_248
    assert weight_bytes(MIXTURE, "bfloat16") == pytest.approx(2 * 30.53e9, rel=1e-3)
    assert kv_bytes_per_token(LLAMA_8B, "bfloat16") == 128 * 1024


def test_arithmetic_is_two_flops_a_weight_that_a_token_uses_and_four_a_head_dimension_attended():
    used = 8_030_261_248 - 128256 * 4096 - 4096
    assert flops_per_token(LLAMA_8B, 0) == pytest.approx(2 * used, rel=1e-6)
    assert flops_per_token(LLAMA_8B, 1000) - flops_per_token(LLAMA_8B, 0) == 4 * 32 * 4096 * 1000
    assert flops_per_token(MIXTURE, 0) == pytest.approx(2 * 3.0e9, rel=0.03)  # the A3B of its name


@given(model=shapes, device=devices, dtype=dtypes, rows=st.integers(1, 64), width=st.integers(1, 16), data=st.data())
def test_a_forward_never_gets_cheaper_with_width_rows_or_context(model, device, dtype, rows, width, data):
    context = data.draw(st.integers(0, 100_000))
    more = {"rows": rows, "width": width, "context": context}
    cost = forward_ms(model, device, dtype, **more)
    for key in more:
        assert forward_ms(model, device, dtype, **{**more, key: more[key] + 1}) >= cost
    assert cost <= width * forward_ms(model, device, dtype, rows=rows, context=context + width) * device.wide_factor


@given(model=shapes, device=devices, dtype=dtypes)
def test_one_position_costs_its_weights_over_the_bandwidth_where_memory_binds(model, device, dtype):
    slow = replace(device, bandwidth_gb_s=0.1, launch_ms=0.0, layer_ms=0.0)
    read = bytes_read(model, dtype, 1, 1, 0)
    assert forward_ms(model, slow, dtype, rows=1) == pytest.approx(read / slow.bytes_per_ms)
    if not model.num_experts and model.tie_word_embeddings:
        assert read == weight_bytes(model, dtype) + kv_bytes_per_token(model, dtype)


@given(model=shapes, device=devices, dtype=dtypes, positions=st.integers(1, 512))
def test_a_forward_costs_its_arithmetic_where_that_binds(model, device, dtype, positions):
    fast = replace(device, bandwidth_gb_s=1e12, launch_ms=0.0, layer_ms=0.0)
    flops = positions * flops_per_token(model, 1)
    assert forward_ms(model, fast, dtype, rows=positions) == pytest.approx(flops / fast.flops_per_ms(dtype))


@given(
    experts=st.integers(1, 256), per_token=st.integers(1, 256), tokens=st.integers(1, 4096), more=st.integers(1, 4096)
)
def test_experts_read_begin_at_a_tokens_own_and_end_at_all_of_them(experts, per_token, tokens, more):
    model = replace(MIXTURE, num_experts=experts, num_experts_per_tok=min(per_token, experts))
    assert experts_read(model, 1) == pytest.approx(model.num_experts_per_tok)
    assert model.num_experts_per_tok - 1e-9 <= experts_read(model, tokens) <= experts
    assert experts_read(model, tokens + more) >= experts_read(model, tokens)
    assert experts_read(LLAMA_8B, tokens) == 0


def test_verification_reads_more_experts_as_it_widens_and_a_dense_models_weights_only_once():
    device = DEVICES["h100"]
    mixture = [forward_ms(MIXTURE, device, "bfloat16", rows=1, width=width) for width in (1, 3, 5, 9)]
    dense = [forward_ms(LLAMA_8B, device, "bfloat16", rows=1, width=width) for width in (1, 3, 5, 9)]
    assert mixture[-1] > 3 * mixture[0]
    assert dense[-1] < 1.01 * dense[0]


def test_long_contexts_cost_their_keys_and_values():
    device = DEVICES["h100"]
    costs = [forward_ms(LLAMA_8B, device, "bfloat16", rows=32, context=context) for context in (1_000, 9_000)]
    assert costs[1] - costs[0] == pytest.approx(32 * 8_000 * 128 * 1024 / device.bytes_per_ms)


def test_each_method_drafts_at_its_own_cost():
    device = DEVICES["h100"]

    def cost(draft, gamma, own=None):
        return drafting_ms(draft, gamma, LLAMA_8B, own, device, "bfloat16", rows=1)

    step = forward_ms(LLAMA_8B, device, "bfloat16", rows=1)
    small = DraftModel(name="small", source="small")
    assert cost(small, 4, SMALL) == pytest.approx(4 * forward_ms(SMALL, device, "bfloat16", rows=1))
    assert cost(replace(small, dtype="float32"), 4, SMALL) > 1.5 * cost(small, 4, SMALL)
    assert cost(EarlyExit(name="exit", layers=32), 1) == pytest.approx(step)
    assert cost(EarlyExit(name="exit", layers=16), 1) < 0.6 * step
    eagle, medusa = Eagle3(name="e", source="e"), Medusa(name="m", source="m")
    assert cost(eagle, 4) == pytest.approx(4 * cost(eagle, 1)) != 0
    assert cost(eagle, 1) < 0.1 * step
    assert cost(medusa, 1) < cost(medusa, 3) < 3 * cost(medusa, 1)
    assert cost(Ngram(name="n"), 8) == cost(Ngram(name="n"), 1) < 0.02 * step
    assert cost(small, 0) == 0
    with pytest.raises(ValueError, match="small"):
        cost(small, 1)


def test_gpus_bind_on_memory_alone_and_on_arithmetic_in_a_crowd():
    for name in ("h100", "h200", "a100", "l4"):
        device = replace(DEVICES[name], launch_ms=0.0, layer_ms=0.0)
        one, crowd = (forward_ms(LLAMA_8B, device, "bfloat16", rows=rows) for rows in (1, 2048))
        assert one == pytest.approx(bytes_read(LLAMA_8B, "bfloat16", 1, 1, 0) / device.bytes_per_ms)
        assert crowd == pytest.approx(2048 * flops_per_token(LLAMA_8B, 1) / device.flops_per_ms("bfloat16"))


@pytest.mark.parametrize(("rows", "width", "measured_ms"), [(1, 1, 21.0), (1, 5, 30.3), (1, 9, 31.7), (8, 1, 31.0)])
def test_the_cpu_costs_what_was_measured_on_it(rows, width, measured_ms):
    found = forward_ms(SMOL, DEVICES["cpu"], "float32", rows=rows, width=width, context=100)
    assert found == pytest.approx(measured_ms, rel=0.05)
