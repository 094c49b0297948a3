"""Fused norms compute what transformers' own compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_families import PROMPTS, tiny_config, tiny_model

from pipeline.engines.decoding.norms import FusedRMSNorm, fuse_norms


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "mixtral", "qwen3_moe", "phi3"])
def test_a_model_with_fused_norms_computes_the_same(family: str, tmp_path: Path) -> None:
    model = tiny_model(tiny_config(family), tmp_path)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    ids = torch.tensor([PROMPTS[1]])
    with torch.inference_mode():
        before = model(input_ids=ids, use_cache=False).logits
        assert fuse_norms(model) >= 2 * model.config.num_hidden_layers + 1
        assert not any(
            type(module).__name__.endswith("RMSNorm") and not isinstance(module, FusedRMSNorm)
            for module in model.modules()
        )
        after = model(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_norms_of_another_kind_stay(tmp_path: Path) -> None:
    assert fuse_norms(tiny_model(tiny_config("gemma2"), tmp_path)) == 0
