"""Targets and draft models made ready to run: weights on their device, in the dtype stated, with their tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from pipeline.engines.decoding.gguf_cache import converted
from pipeline.engines.decoding.sources import Location, locate
from pipeline.engines.decoding.supported import check_supported
from pipeline.records.failure import InputError
from pipeline.records.target import DraftModel, Target

_UNREADABLE = (OSError, ValueError, KeyError, ImportError)
"""What transformers raises for files it cannot make a configuration, a tokenizer or a model of."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode with its tokenizer. ``path``: the folder or GGUF file found; ``revision``: of its files."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    revision: str
    path: Path


@dataclass(frozen=True)
class _Files:
    """How transformers is told where to read: a folder or hub id, and the commit of the latter."""

    name: str
    commit: str | None
    trust_remote_code: bool
    key: str

    def config(self) -> PretrainedConfig:
        try:
            return AutoConfig.from_pretrained(self.name, revision=self.commit, trust_remote_code=self.trust_remote_code)
        except _UNREADABLE as error:
            raise InputError(f"{self.key}={self.name}: unreadable configuration: {_first_line(error)}") from error

    def tokenizer(self) -> PreTrainedTokenizerBase:
        try:
            return AutoTokenizer.from_pretrained(
                self.name, revision=self.commit, trust_remote_code=self.trust_remote_code
            )
        except _UNREADABLE as error:
            raise InputError(f"{self.key}={self.name}: no usable tokenizer: {_first_line(error)}") from error

    def model(
        self, config: PretrainedConfig, dtype: torch.dtype, device: str, attn_implementation: str, allow_pickle: bool
    ) -> PreTrainedModel:
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                self.name,
                config=config,
                revision=self.commit,
                dtype=dtype,
                attn_implementation=attn_implementation,
                trust_remote_code=self.trust_remote_code,
                use_safetensors=None if allow_pickle else True,
                ignore_mismatched_sizes=True,  # so that they are reported, below
                output_loading_info=True,
            )
        except (*_UNREADABLE, SafetensorError) as error:
            raise InputError(f"{self.key}={self.name}: unreadable weights: {_first_line(error)}") from error
        absent = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
        if absent:  # transformers would fill them with random numbers
            raise InputError(
                f"{self.key}={self.name}: {len(absent)} weights are missing or of another shape, such as {absent[0]}"
            )
        return model.to(device).eval().requires_grad_(False)


def load_target(target: Target, device: str, attn_implementation: str = "sdpa") -> LoadedModel:
    """Load ``target`` on ``device`` (``cpu``, ``cuda``, ``cuda:N``).

    Raises InputError, before the weights are read, for what cannot be found, read or decoded losslessly, and for
    CUDA on a build or machine without it.
    """
    check_device(device)
    key = f"targets.{target.name}.source"
    location = locate(target.source, target.revision, key=key, allow_pickle=target.allow_pickle)
    dtype = _dtype(target.dtype)
    files = _files(location, dtype, target.trust_remote_code, key)
    config = files.config()
    check_supported(config, f"{key}={target.source}")
    if target.tokenizer is None:
        tokenizer = files.tokenizer()
    else:
        tokenizer = _Files(
            target.tokenizer, None, target.trust_remote_code, f"targets.{target.name}.tokenizer"
        ).tokenizer()
    _check_rows(config, tokenizer, f"{key}={target.source}")
    model = files.model(config, dtype, device, attn_implementation, target.allow_pickle)
    return LoadedModel(model=model, tokenizer=tokenizer, revision=location.revision, path=location.path)


def load_draft_model(
    draft: DraftModel, target: LoadedModel, target_spec: Target, device: str, attn_implementation: str = "sdpa"
) -> LoadedModel:
    """Load ``draft`` for ``target``; ``target_spec`` gives its dtype unless it states one, and what loading may trust.

    The two tokenizers must give every id the same text. Embedding tables may be padded beyond it, each to its own
    length: those rows are not tokens. Raises InputError as ``load_target`` does, and for another vocabulary, both
    before the weights are read.
    """
    check_device(device)
    key = f"drafts.{draft.name}.source"
    location = locate(draft.source, draft.revision, key=key, allow_pickle=target_spec.allow_pickle)
    dtype = _dtype(draft.dtype or target_spec.dtype)
    files = _files(location, dtype, target_spec.trust_remote_code, key)
    config = files.config()
    check_supported(config, f"{key}={draft.source}")
    tokenizer = files.tokenizer()
    _check_same_vocabulary(tokenizer, target.tokenizer, f"{key}={draft.source}", target_spec.name)
    _check_rows(config, tokenizer, f"{key}={draft.source}")
    model = files.model(config, dtype, device, attn_implementation, target_spec.allow_pickle)
    return LoadedModel(model=model, tokenizer=tokenizer, revision=location.revision, path=location.path)


def check_device(device: str) -> None:
    """Raise InputError when ``device`` asks for CUDA and there is none."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        why = "finds no GPU" if torch.version.cuda else "is a build without CUDA"
        raise InputError(f"engine.device={device}: PyTorch {torch.__version__} {why}; allowed here: cpu, auto")


def _files(location: Location, dtype: torch.dtype, trust_remote_code: bool, key: str) -> _Files:
    if location.kind == "hub":
        return _Files(location.source, location.revision, trust_remote_code, key)
    folder = converted(location.path, dtype, key=key) if location.kind == "gguf" else location.path
    return _Files(str(folder), None, trust_remote_code, key)


def _dtype(name: str) -> torch.dtype:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def _check_rows(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, what: str) -> None:
    """Every token needs an embedding row; a tokenizer that is longer belongs to another model."""
    greatest = max(tokenizer.get_vocab().values())
    if greatest >= config.vocab_size:
        raise InputError(f"{what}: its tokenizer has token id {greatest}, its embeddings only {config.vocab_size} rows")


def _check_same_vocabulary(
    draft: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase, what: str, target_name: str
) -> None:
    """Token text to id, special tokens among them, must be one mapping: proposals are ids."""
    ours, theirs = draft.get_vocab(), target.get_vocab()
    if ours == theirs:
        return
    differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    example = differing[0]
    raise InputError(
        f"{what}: its vocabulary is not that of target {target_name}: {len(differing)} tokens differ, such as "
        f"{example!r} (id {ours.get(example)} here, {theirs.get(example)} there); "
        "allowed: the same tokens, embedding rows padded"
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def eos_tokens(source: LoadedModel) -> tuple[int, ...]:
    """What ends a text: the generation configuration's tokens, else the model's, else the tokenizer's."""
    for owner in (source.model.generation_config, source.model.config, source.tokenizer):
        tokens = getattr(owner, "eos_token_id", None)
        if tokens is not None:
            return (tokens,) if isinstance(tokens, int) else tuple(tokens)
    return ()
