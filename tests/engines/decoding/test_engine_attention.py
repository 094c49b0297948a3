"""Folded attention against transformers' own, and masks against their definition."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as capped_attention
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as sink_attention
from transformers.models.llama.modeling_llama import eager_attention_forward as grouped_attention

from pipeline.engines.decoding.attention import attend
from pipeline.engines.decoding.masks import FULL, SLIDING, MaskPlan
from pipeline.records.failure import InputError

B, H, KV, W, L, D = 3, 6, 2, 4, 16, 8
POSITIONS = torch.tensor([[0, 1, 2, 3], [9, 10, 11, 12], [4, 5, 6, 7]])


def _states() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.num_key_value_groups = H // KV
    module.sinks = torch.randn(H)
    return module, torch.randn(B, H, W, D), torch.randn(B, KV, L, D), torch.randn(B, KV, L, D)


@pytest.mark.parametrize("folded_mask", [False, True])
@pytest.mark.parametrize("case", ["grouped", "soft cap", "sinks"])
def test_attention_is_that_of_transformers(case: str, folded_mask: bool) -> None:
    module, query, key, value = _states()
    plan = MaskPlan({FULL: None})
    mask = plan.build(POSITIONS, L, 1, torch.float32)
    given = plan.build(POSITIONS, L, H // KV, torch.float32) if folded_mask else mask
    extra: dict[str, object] = {}
    if case == "grouped":
        expected, _ = grouped_attention(module, query, key, value, mask, scaling=0.3)
    elif case == "soft cap":
        extra = {"softcap": 1.5}
        expected, _ = capped_attention(module, query, key, value, mask, scaling=0.3, softcap=1.5)
    else:
        extra = {"s_aux": module.sinks}
        expected, _ = sink_attention(module, query, key, value, mask, scaling=0.3)
    got, _ = attend(module, query, key, value, given, scaling=0.3, **extra)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_one_token_a_row_needs_no_folded_mask() -> None:
    module, query, key, value = _states()
    mask = MaskPlan({FULL: None}).build(POSITIONS[:, :1], L, H // KV, torch.float32)
    assert mask.shape == (B, 1, 1, L)
    expected, _ = grouped_attention(module, query[:, :, :1], key, value, mask, scaling=0.3)
    got, _ = attend(module, query[:, :, :1], key, value, mask, scaling=0.3)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_a_missing_mask_or_a_position_bias_is_refused() -> None:
    module, query, key, value = _states()
    with pytest.raises(RuntimeError, match="without a mask"):
        attend(module, query, key, value, None)
    with pytest.raises(InputError, match="position bias"):
        attend(module, query, key, value, torch.zeros(B, 1, W, L), position_bias=torch.zeros(1, H, W, L))


def test_masks_allow_the_past_and_the_window_only() -> None:
    masks = MaskPlan({FULL: None, SLIDING: 3}).build(POSITIONS, L, 2, torch.float32)
    assert isinstance(masks, dict)
    for kind, window in ((FULL, L), (SLIDING, 3)):
        assert masks[kind].shape == (B, 1, 2 * W, L)
        for b in range(B):
            for row in range(2 * W):
                at = int(POSITIONS[b, row % W])
                allowed = [0.0 if at - window < column <= at else -torch.inf for column in range(L)]
                assert masks[kind][b, 0, row].tolist() == allowed


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({}, {FULL: None}),
        ({"sliding_window": 8}, {SLIDING: 8}),
        ({"sliding_window": 8, "layer_types": [FULL, FULL]}, {FULL: None}),
        ({"sliding_window": 8, "layer_types": [SLIDING, FULL]}, {FULL: None, SLIDING: 8}),
    ],
)
def test_windows_follow_the_configuration(config: dict[str, object], windows: dict[str, int | None]) -> None:
    assert MaskPlan.of(SimpleNamespace(model_type="m", **config)).windows == windows


def test_other_kinds_of_layer_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="model type m has chunked_attention layers"):
        MaskPlan.of(SimpleNamespace(model_type="m", layer_types=[FULL, "chunked_attention"]))
