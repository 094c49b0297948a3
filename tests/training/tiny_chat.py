"""Tiny random chat models whose words are tokens, and settings that make a head for one in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from pipeline.records.cell import Workload
from pipeline.records.head_training import CollectSettings, FitSettings, HeadSettings, HeadTraining
from pipeline.records.settings import TrackingSettings
from pipeline.records.target import Ngram, Target

VOCABULARY = 64
BOS, EOS, USER, ASSISTANT = 1, 2, 3, 4
TEMPLATE = (
    "{{ '<s> ' }}{% for m in messages %}{{ '<user> ' if m.role == 'user' else '<assistant> ' }}{{ m.content }}"
    "{{ ' </s> ' }}{% endfor %}{{ '<assistant> ' if add_generation_prompt else '' }}"
)
FAMILIES = ("llama", "qwen3", "gpt2")


def tiny_chat(folder: Path, family: str = "llama", template: str | None = TEMPLATE) -> Target:
    """A random model in ``folder`` with a tokenizer of one token a word."""
    _model(family).save_pretrained(folder)
    special = {"<unk>": 0, "<s>": BOS, "</s>": EOS, "<user>": USER, "<assistant>": ASSISTANT}
    inner = Tokenizer(models.WordLevel(special | {f"w{i}": i for i in range(5, VOCABULARY)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.Sequence([decoders.Replace("w", " w")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return Target(name="tiny", source=str(folder), dtype="float32")


def prompts_file(path: Path, count: int = 8) -> Path:
    """Chat JSONL of so many prompts, all different."""
    lines = [
        {
            "id": f"p{i}",
            "messages": [{"role": "user", "content": " ".join(f"w{5 + (7 * i + j) % 59}" for j in range(5))}],
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def tiny_settings(folder: Path, family: str = "llama", **changes: object) -> HeadTraining:
    """A head in a few steps. ``changes`` are fields of ``HeadTraining``."""
    target = tiny_chat(folder / "model", family)
    workload = Workload(name="talk", format="chat", path=str(prompts_file(folder / "talk.jsonl")), output_tokens=12)
    settings: dict[str, object] = {
        "name": "tiny",
        "output_dir": str(folder / "runs"),
        "target": target,
        "ngram": Ngram(name="ngram"),
        "workloads": (workload,),
        "device": "cpu",
        "collect": CollectSettings(
            held_out=0.25, watched=0.25, prompt_tokens=24, requests=48, slots=4, dtype="float32", tokens=100
        ),
        "head": HeadSettings(vocabulary=48),
        "fit": FitSettings(epochs=100, draft_steps=2, batch_tokens=128, looks=3, steps=9, learning_rate=3e-3),
        "tracking": TrackingSettings(enabled=False),
    }
    return HeadTraining(**(settings | changes))  # type: ignore[arg-type]


def _model(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if family == "gpt2":
        config = GPT2Config(
            vocab_size=VOCABULARY, n_positions=128, n_embd=32, n_layer=4, n_head=4, initializer_range=0.15
        )
        config.bos_token_id, config.eos_token_id = BOS, EOS
        return GPT2LMHeadModel(config).eval()
    kind, model = (Qwen3Config, Qwen3ForCausalLM) if family == "qwen3" else (LlamaConfig, LlamaForCausalLM)
    config = kind(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.15,
        bos_token_id=BOS,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )
    return model(config).eval()
