"""A mixture whose experts the host would wait for is given others; the text stays what it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_families import PROMPTS, tiny_config, tiny_model

from pipeline.engines.decoding.experts import make_recordable


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts_that_wait_are_replaced(family: str, tmp_path: Path) -> None:
    model, ids = tiny_model(tiny_config(family), tmp_path), torch.tensor([PROMPTS[1]])
    model.set_experts_implementation("eager")
    with torch.inference_mode():
        before = model(input_ids=ids, use_cache=False).logits
        make_recordable(model)
        after = model(input_ids=ids, use_cache=False).logits
    assert model.config._experts_implementation == "grouped_mm"
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_what_was_chosen_otherwise_stays(tmp_path: Path) -> None:
    model = tiny_model(tiny_config("mixtral"), tmp_path)
    model.set_experts_implementation("batched_mm")
    make_recordable(model)
    assert model.config._experts_implementation == "batched_mm"


def test_a_model_without_experts_is_left_alone(tmp_path: Path) -> None:
    make_recordable(tiny_model(tiny_config("llama"), tmp_path))
