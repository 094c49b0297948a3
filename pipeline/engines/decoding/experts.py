"""Mixtures of experts whose forward can be recorded."""

from __future__ import annotations

from transformers import PreTrainedModel

WAITS = "eager"
"""transformers' loop over the experts that were hit: the host must know which, so that it waits for the device."""


def make_recordable(model: PreTrainedModel) -> None:
    """Choose an implementation of ``model``'s experts that never makes the host wait, where it has another one.

    ``grouped_mm`` is transformers' own default where PyTorch has it: products of all experts in one kernel (in bf16;
    in fp32 PyTorch's own fallback waits too). ``batched_mm`` copies the weights of every token's experts first.
    """
    if getattr(model.config, "_experts_implementation", None) != WAITS or not model._can_set_experts_implementation():
        return
    try:
        model.set_experts_implementation("grouped_mm")
    except (ValueError, ImportError):
        model.set_experts_implementation("batched_mm")
