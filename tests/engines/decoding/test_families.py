"""Every model type that is allowed decodes here as transformers' own generation does, with and without a draft.

Three rows of different length at once. The types that are met most run always, the others with the slow tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from pipeline.engines.contract import OFF, Limits, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.masks import MaskPlan
from pipeline.engines.decoding.supported import DECODABLE, check_supported, supports_early_exit
from pipeline.records.cell import Sampling
from pipeline.records.failure import InputError
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, EarlyExit, Ngram, Target
from pipeline.records.trace import Trace

V = 61
WINDOW = 8
OUTPUT = 24
PROMPTS = [tuple((7 * i + 3 * k) % V for i in range(length)) for k, length in enumerate((3, 11, 19))]
GREEDY = Sampling(name="greedy")
NGRAM = Ngram(name="ngram", min_n=1)

COMMON = frozenset(
    "llama qwen2 qwen3 mistral gemma2 gemma3_text gpt2 phi3 gpt_neox mixtral qwen3_moe".split()  # noqa: SIM905
)
FAMILIES = [pytest.param(name, marks=() if name in COMMON else pytest.mark.slow) for name in sorted(DECODABLE | COMMON)]
WINDOWED = ("mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")

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


def tiny_config(family: str, **settings: object) -> PretrainedConfig:
    """Only settings that the family itself declares, so that windows and experts appear where they belong."""
    declared = AutoConfig.for_model(family)
    known = {k: v for k, v in SMALL.items() if hasattr(declared, k)} | SPECIAL.get(family, {})
    if isinstance(getattr(type(declared), "head_dim", None), property):
        known.pop("head_dim", None)
    if getattr(declared, "sliding_window", None) is None and family not in WINDOWED:
        known.pop("sliding_window", None)
    return AutoConfig.for_model(family, **(known | settings))


def tiny_model(config: PretrainedConfig, folder: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(V)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0"))).save_pretrained(folder)
    return model


def opened(folder: Path, drafts: Sequence[Draft]) -> DecodingEngine:
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    engine.open(Target(name="tiny", source=str(folder), dtype="float32"), drafts, Limits(concurrency=3, max_gamma=3))
    return engine


REQUESTS = [
    Request(request_id=str(i), prompt_id=str(i), tokens=prompt, max_new_tokens=OUTPUT, seed=0, ignore_eos=True)
    for i, prompt in enumerate(PROMPTS)
]


def texts(trace: Trace) -> list[tuple[int, ...]]:
    return [request.output for request in trace.requests]


def generated(model: PreTrainedModel, prompt: tuple[int, ...], tokens: int = OUTPUT) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None  # nothing ends a text but its length
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
    return tuple(out[0, len(prompt) :].tolist())


def check_that_texts_are_those_of_transformers(engine: DecodingEngine, drafts: Sequence[Draft], wanted: object) -> None:
    assert texts(engine.run(REQUESTS, GREEDY, None, OFF)) == wanted, "plain text differs"
    for draft in drafts:
        assert texts(engine.run(REQUESTS, GREEDY, draft, Schedule.constant(3))) == wanted, draft.name


@pytest.mark.parametrize("family", FAMILIES)
def test_text_equals_that_of_transformers(family: str, tmp_path: Path) -> None:
    model = tiny_model(tiny_config(family), tmp_path)
    check_supported(model.config)
    drafts: list[Draft] = [NGRAM]
    if supports_early_exit(model.config):
        drafts.append(EarlyExit(name="early_exit", layers=1))
    wanted = [generated(model, prompt) for prompt in PROMPTS]
    assert len({token for text in wanted for token in text}) > 8, "a text of few tokens tests little"
    engine = opened(tmp_path, drafts)
    check_that_texts_are_those_of_transformers(engine, drafts, wanted)
    if family in COMMON:
        trace = engine.run(REQUESTS, GREEDY, NGRAM, Schedule.constant(3))
        assert any(it.accepted for it in trace.iterations), "nothing was accepted, which tests little"
    engine.close()


@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_that_is_left_out_is_noticed(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the texts above do reach beyond their windows."""
    model = tiny_model(tiny_config(family), tmp_path)
    wanted = [generated(model, prompt) for prompt in PROMPTS]
    plan = MaskPlan.of(model.config)
    assert WINDOW in plan.windows.values()
    monkeypatch.setattr(MaskPlan, "of", lambda config: MaskPlan(dict.fromkeys(plan.windows)))
    engine = opened(tmp_path, ())
    with pytest.raises(AssertionError, match="plain text differs"):
        check_that_texts_are_those_of_transformers(engine, (), wanted)
    engine.close()


ORIGINAL = 32
SCALINGS = {
    "llama": ({"rope_type": "dynamic", "factor": 4.0}, {"max_position_embeddings": ORIGINAL}),
    "phi3": (
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
        {"original_max_position_embeddings": ORIGINAL},
    ),
}


@pytest.mark.parametrize("end_to_end", [True, False])
@pytest.mark.parametrize("family", SCALINGS)
def test_scaling_by_length_decodes_up_to_the_original_length_and_is_refused_beyond(
    family: str, end_to_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it transformers turns every key as far as the longest row of a batch says: no row is then its own."""
    rope, lengths = SCALINGS[family]
    model = tiny_model(tiny_config(family, rope_parameters={"rope_theta": 1e4, **rope}, **lengths), tmp_path)
    engine = opened(tmp_path, [NGRAM])
    monkeypatch.setattr(engine._opened().model, "lays_end_to_end", end_to_end)  # else padding stands past the end
    assert engine.facts.max_context == ORIGINAL
    room = [replace(request, max_new_tokens=ORIGINAL - len(request.tokens)) for request in REQUESTS]
    wanted = [generated(model, request.tokens, request.max_new_tokens) for request in room]
    assert texts(engine.run(room, GREEDY, NGRAM, Schedule.constant(3))) == wanted
    long = replace(REQUESTS[2], max_new_tokens=ORIGINAL - len(PROMPTS[2]) + 1)
    with pytest.raises(InputError, match=f"request 2: 19 prompt and 14 output tokens do not fit in {ORIGINAL} tokens"):
        engine.run([long], GREEDY, NGRAM, Schedule.constant(3))
    engine.close()
