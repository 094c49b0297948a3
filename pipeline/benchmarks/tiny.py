"""A target of eight words with every kind of draft, made on the spot: small enough to enumerate what it may write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from pipeline.benchmarks.random_heads import SPECULATORS, eagle3_entries, eagle3_tensors, write_eagle3, write_medusa
from pipeline.records.target import Draft, DraftModel, Eagle3, EarlyExit, Medusa, Ngram, Target

VOCABULARY = 8
HEADS = 3
"""The greatest γ that its Medusa draft can do."""
_HIDDEN = 16
_KNOWN = (1, 2, 3, 5, 6)
"""The tokens that its EAGLE-3 head knows."""


@dataclass(frozen=True)
class Tiny:
    """``drafts`` by name: each method, sampled and (``*_greedy``) greedy, and a draft model with a padded table."""

    target: Target
    drafts: dict[str, Draft]

    def reference(self) -> PreTrainedModel:
        """The target as transformers itself runs it."""
        return LlamaForCausalLM.from_pretrained(self.target.source, dtype=torch.float32).eval()


def write_tiny(folder: Path) -> Tiny:
    """Write target and drafts below ``folder``. Their weights are random, always the same."""
    target = _write_model(folder / "target", seed=0, layers=2)
    small = _write_model(folder / "draft", seed=5, layers=1)
    padded = _write_model(folder / "padded", seed=6, layers=1, rows=12)
    medusa = str(write_medusa(folder / "medusa", heads=HEADS, hidden=_HIDDEN, vocabulary=VOCABULARY, seed=2))
    eagle3 = _write_eagle3(folder / "eagle3")
    drafts: list[Draft] = [
        Ngram(name="ngram"),
        DraftModel(name="draft_model", source=small),
        DraftModel(name="draft_model_greedy", source=small, draft_sampling="greedy"),
        DraftModel(name="draft_model_padded", source=padded),
        EarlyExit(name="early_exit", layers=1),
        EarlyExit(name="early_exit_greedy", layers=1, draft_sampling="greedy"),
        Medusa(name="medusa", source=medusa),
        Medusa(name="medusa_greedy", source=medusa, draft_sampling="greedy"),
        Eagle3(name="eagle3", source=eagle3),
        Eagle3(name="eagle3_greedy", source=eagle3, draft_sampling="greedy"),
    ]
    return Tiny(Target(name="tiny", source=target, dtype="float32"), {draft.name: draft for draft in drafts})


def _write_model(folder: Path, seed: int, layers: int, rows: int = VOCABULARY) -> str:
    """A llama whose weights are large enough that its choices differ by context. ``rows``: of its tables."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=_HIDDEN,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(folder)
    return str(folder)


def _write_eagle3(folder: Path) -> str:
    layer = {"hidden_size": _HIDDEN, "intermediate_size": 16, "vocab_size": VOCABULARY}
    states = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    entries = eagle3_entries(SPECULATORS, layer, draft_vocab_size=len(_KNOWN), **states)
    tensors = eagle3_tensors(entries, ids=_KNOWN, embeddings=False, target_hidden=_HIDDEN)
    return str(write_eagle3(folder, entries, tensors, SPECULATORS))
