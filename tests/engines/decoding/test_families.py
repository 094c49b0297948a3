"""Every model type that is allowed decodes here as transformers' own generation does, with and without a draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from pipeline.engines.contract import OFF, Limits, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.supported import DECODABLE, check_supported, supports_early_exit
from pipeline.records.cell import Sampling
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, EarlyExit, Ngram, Target

V = 61
WINDOW = 8
OUTPUT = 24
PROMPTS = [tuple((7 * i + 3 * k) % V for i in range(length)) for k, length in enumerate((3, 11, 19))]
GREEDY = Sampling(name="greedy")

SMALL = {
    "vocab_size": V + 3,  # padded: some tokenizer classes add special tokens of their own
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "tie_word_embeddings": False,  # tied and random, a model repeats its last token
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPECIAL: dict[str, dict[str, object]] = {
    "gpt2": {"n_inner": 64},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "gemma2": {"query_pre_attn_scalar": 8},
    "gemma3_text": {"query_pre_attn_scalar": 8},
}


def tiny_config(family: str) -> PretrainedConfig:
    """Only settings that the family itself declares, so that windows and experts appear where they belong."""
    declared = AutoConfig.for_model(family)
    known = {k: v for k, v in SMALL.items() if hasattr(declared, k)} | SPECIAL.get(family, {})
    if isinstance(getattr(type(declared), "head_dim", None), property):
        known.pop("head_dim", None)
    if getattr(declared, "sliding_window", None) is None and family not in {"mistral", "qwen2", "qwen3"}:
        known.pop("sliding_window", None)
    return AutoConfig.for_model(family, **known)


def tiny_model(family: str, folder: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(family)).eval()
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(V)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0"))).save_pretrained(folder)
    return model


def generated(model: PreTrainedModel, prompt: tuple[int, ...]) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None  # nothing ends a text but its length
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=OUTPUT)
    return tuple(out[0, len(prompt) :].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(DECODABLE))
def test_text_equals_that_of_transformers(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, tmp_path)
    check_supported(model.config)
    drafts: list[Draft] = [Ngram(name="ngram", min_n=1)]
    if supports_early_exit(model.config):
        drafts.append(EarlyExit(name="early_exit", layers=1))
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    engine.open(Target(name=family, source=str(tmp_path), dtype="float32"), drafts, Limits(concurrency=3, max_gamma=3))
    requests = [
        Request(request_id=str(i), prompt_id=str(i), tokens=prompt, max_new_tokens=OUTPUT, seed=0, ignore_eos=True)
        for i, prompt in enumerate(PROMPTS)
    ]
    run: Callable[..., list[tuple[int, ...]]] = lambda draft, schedule: [  # noqa: E731
        request.output for request in engine.run(requests, GREEDY, draft, schedule).requests
    ]
    wanted = [generated(model, prompt) for prompt in PROMPTS]
    assert len({token for text in wanted for token in text}) > 8, "a text of few tokens tests little"
    assert run(None, OFF) == wanted
    for draft in drafts:
        assert run(draft, Schedule.constant(3)) == wanted, draft.name
    engine.close()
