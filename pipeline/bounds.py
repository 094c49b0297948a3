"""What the settings may be beyond their types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pipeline.engines.devices import DEVICES
from pipeline.records.cell import Sampling, Workload
from pipeline.records.failure import InputError
from pipeline.records.head_training import CollectSettings, FitSettings, HeadSettings, HeadTraining
from pipeline.records.settings import (
    AssumedAcceptance,
    Budget,
    ClusterSettings,
    Constraints,
    PlanSettings,
    PolicySettings,
    Protocol,
    SearchSettings,
)
from pipeline.records.shape import ModelShape
from pipeline.records.target import DraftModel, Eagle3, EarlyExit, Medusa, Ngram, Target


@dataclass(frozen=True)
class Bound:
    """``holds`` is asked of a value that has the setting's type and is not None; ``allowed`` says it in words."""

    holds: Callable[[Any], bool]
    allowed: str


def _at_least(least: int) -> Bound:
    return Bound(lambda value: bool(value >= least), f"at least {least}")


_SEED = Bound(lambda value: 0 <= value < 2**32, "from 0 to 4294967295")
_POSITIVE = Bound(lambda value: bool(value > 0), "greater than 0")
_SHARE = Bound(lambda value: 0 < value < 1, "greater than 0 and less than 1")
_PENALTY = Bound(lambda value: -2 <= value <= 2, "from -2 to 2 (0 is none)")
_CHANCE = Bound(lambda value: 0 <= value <= 1, "from 0 to 1")
_NOT_EMPTY = Bound(lambda value: bool(value.strip()), "not empty")

_BOUNDS: Mapping[type, Mapping[str, Bound]] = {
    Target: {"source": _NOT_EMPTY, "revision": _NOT_EMPTY, "tokenizer": _NOT_EMPTY},
    Ngram: {"min_n": _at_least(1), "max_n": _at_least(1)},
    DraftModel: {"source": _NOT_EMPTY, "revision": _NOT_EMPTY},
    EarlyExit: {"layers": _at_least(1)},
    Medusa: {"source": _NOT_EMPTY, "revision": _NOT_EMPTY},
    Eagle3: {"source": _NOT_EMPTY, "revision": _NOT_EMPTY},
    Workload: {
        "path": _NOT_EMPTY,
        "output_tokens": _at_least(2),
        "stop": Bound(
            lambda value: all(stop and "\ufffd" not in stop for stop in value),
            "strings that are not empty and without U+FFFD, which any half character decodes to",
        ),
        "stop_token_ids": Bound(lambda value: all(token >= 0 for token in value), "token ids, each at least 0"),
        "max_prompt_tokens": _at_least(1),
        "context_tokens": _at_least(1),
        "context_path": _NOT_EMPTY,
    },
    Sampling: {
        "temperature": _at_least(0),
        "top_k": _at_least(0),
        "top_p": Bound(lambda value: 0 < value <= 1, "greater than 0 and at most 1"),
        "min_p": Bound(lambda value: 0 <= value < 1, "at least 0 and less than 1"),
        "repetition_penalty": Bound(lambda value: 0.01 <= value <= 100, "from 0.01 to 100 (1 is none)"),
        "presence_penalty": _PENALTY,
        "frequency_penalty": _PENALTY,
    },
    Protocol: {
        "search_prompts": _at_least(1),
        "confirm_prompts": _at_least(3),  # a prompt for each of the three looks
        "seeds": _at_least(1),
        "shuffle_seed": _at_least(0),
        "warmup_tokens": _at_least(0),
        "tie_margin": _at_least(0),
        "tie_margin_low_precision": _at_least(0),
        "drift_least": _at_least(0),
        "drift_z": _at_least(0),
        "remeasure": _at_least(0),
    },
    SearchSettings: {"candidates_per_round": _at_least(1), "max_candidates": _at_least(1), "seed": _SEED},
    ClusterSettings: {
        "address": Bound(
            lambda value: bool(value.strip()) and value != "local",
            "null, auto or the address of a cluster (local would ignore the cluster of a running job)",
        ),
        "workers": _at_least(1),
        "gpus_per_worker": _at_least(0),
        "cpus_per_worker": _at_least(1),
        "accelerator_type": _NOT_EMPTY,
        "placement_timeout_s": _POSITIVE,
        "call_timeout_s": _POSITIVE,
        "retries": _at_least(0),
    },
    Budget: {"cell_s": _POSITIVE, "worker_hours": _POSITIVE},
    PolicySettings: {"margin": _at_least(0)},
    Constraints: dict.fromkeys((field.name for field in fields(Constraints)), _POSITIVE),
    AssumedAcceptance: dict.fromkeys(("ngram", "draft_model", "early_exit", "medusa", "eagle3"), _CHANCE),
    PlanSettings: {
        "device": Bound(lambda value: value in DEVICES, f"null or one of {', '.join(DEVICES)}"),
        "characters_per_token": _POSITIVE,
        "overhead": _at_least(0),
        "start_s": _at_least(0),
        "load_gb_s": _POSITIVE,
        "allowance": _at_least(1),
    },
    ModelShape: {
        "num_hidden_layers": _at_least(1),
        "hidden_size": _at_least(1),
        "intermediate_size": _at_least(1),
        "num_attention_heads": _at_least(1),
        "num_key_value_heads": _at_least(1),
        "head_dim": _at_least(1),
        "vocab_size": _at_least(1),
        "num_experts": _at_least(0),
        "num_experts_per_tok": _at_least(0),
    },
    HeadTraining: {"minutes": _POSITIVE, "seed": _SEED},
    CollectSettings: {
        "held_out": _SHARE,
        "watched": _SHARE,
        "sampled": _CHANCE,
        "prompt_tokens": _at_least(4),
        "requests": _at_least(1),
        "slots": _at_least(1),
        "tokens": _at_least(1),
    },
    HeadSettings: {
        "states": Bound(lambda value: len(value) > 0 and min(value) >= 0, "a list of whole numbers of at least 0"),
        "vocabulary": _at_least(1),
        "intermediate_size": _at_least(1),
    },
    FitSettings: {
        "epochs": _POSITIVE,
        "draft_steps": _at_least(1),
        "later_weight": Bound(lambda value: 0 < value <= 1, "greater than 0 and at most 1"),
        "batch_tokens": _at_least(1),
        "learning_rate": _POSITIVE,
        "weight_decay": _at_least(0),
        "warmup": Bound(lambda value: 0 <= value < 1, "at least 0 and less than 1"),
        "looks": _at_least(1),
        "patience": _at_least(1),
        "steps": _at_least(1),
    },
}


def check_bounds(record: object, key: str) -> None:
    """Raise InputError for the first setting of ``record``, found at ``key``, that is out of bounds."""
    for field, bound in _BOUNDS.get(type(record), {}).items():
        value = getattr(record, field)
        if value is not None and not bound.holds(value):
            raise InputError(f"{key}.{field}: must be {bound.allowed}, not {value!r}")
    if isinstance(record, Ngram) and record.min_n > record.max_n:
        raise InputError(f"{key}.min_n: must be at most max_n ({record.max_n}), not {record.min_n}")
    if (
        isinstance(record, ModelShape)
        and not min(1, record.num_experts) <= record.num_experts_per_tok <= record.num_experts
    ):
        allowed = f"from 1 to num_experts ({record.num_experts})" if record.num_experts else "0 without experts"
        raise InputError(f"{key}.num_experts_per_tok: must be {allowed}, not {record.num_experts_per_tok}")
    if isinstance(record, PlanSettings):
        check_bounds(record.acceptance, f"{key}.acceptance")
    if isinstance(record, Workload):
        if record.format != "bundled" and record.path is None:
            raise InputError(f"{key}.path: must be set to a file of prompts (format {record.format})")
        if record.categories and record.format != "spec_bench":
            raise InputError(f"{key}.categories: only format spec_bench has categories, not {record.format}")
        if record.context_path is not None and record.context_tokens is None:
            raise InputError(f"{key}.context_path: lengthens no prompt while context_tokens names no length")
        longest, wanted = record.max_prompt_tokens, record.context_tokens
        if longest is not None and wanted is not None and wanted > longest:
            raise InputError(f"{key}.context_tokens: must be at most max_prompt_tokens ({longest}), not {wanted}")


def check_name(name: str, key: str) -> None:
    """Raise InputError for a name that folders and metrics cannot carry."""
    if name.lower() == "off":
        raise InputError(f"{key}: off cannot be a name: it means no speculation")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or set(name) == {"."}:
        raise InputError(f"{key}: {name!r} cannot be a name; use letters, digits, '_', '-' and '.'")


def check_counts(counts: tuple[int, ...], key: str) -> None:
    """Raise InputError unless ``counts`` holds at least one number, each at least 1 and once."""
    if not counts:
        raise InputError(f"{key}: must hold at least one number")
    for count in counts:
        if count < 1:
            raise InputError(f"{key}: each must be at least 1, not {count}")
        if counts.count(count) > 1:
            raise InputError(f"{key}: {count} is given twice")
