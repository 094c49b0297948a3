"""EAGLE-3 heads from published checkpoints, in either naming: ``midlayer.*`` or ``layers.0.*``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pipeline.engines.decoding.heads.eagle3 import Eagle3Head, Eagle3Weights
from pipeline.engines.decoding.heads.eagle3_config import Eagle3Config, eagle3_config
from pipeline.engines.decoding.heads.files import HeadFiles, assign, read_tensors
from pipeline.engines.decoding.loading import LoadedModel
from pipeline.engines.decoding.proposers.chain import DraftVocabulary
from pipeline.records.failure import InputError

_MAPS = ("d2t", "t2d")
_ONLY_FOR_TRAINING = ("verifier_norm.weight", "verifier_lm_head.weight")
"""The target's own norm and output layer, which training compares with."""


def load_eagle3(files: HeadFiles, target: LoadedModel, device: str) -> Eagle3Head:
    """A head for ``target``, in its dtype.

    Where the checkpoint has no ``embed_tokens`` the target's are used. ``d2t`` holds offsets: the head's token i is the
    target's i + d2t[i]; without it the two vocabularies are one. Raises InputError, before the weights are read where
    the configuration tells, for a head of another model, and by name for what is missing, left over or unknown.
    """
    what, of_target = files.what, target.model.config.get_text_config()
    config = eagle3_config(files.settings, of_target.hidden_size, of_target.vocab_size, what)
    states = config.states_of(of_target.num_hidden_layers, what)

    tensors = _renamed(read_tensors(files), what)
    vocabulary = _vocabulary(config, {name: tensors.pop(name, None) for name in _MAPS}, device, what)
    with torch.device("meta"):
        weights = Eagle3Weights(config, len(states), own_embeddings="embed_tokens.weight" in tensors)
    assign(weights, tensors, target.model.dtype, device, what)
    return Eagle3Head(
        config, weights, _embeddings(config, weights, target, what), states, vocabulary, files.location.revision
    )


def _embeddings(config: Eagle3Config, weights: Eagle3Weights, target: LoadedModel, what: str) -> nn.Embedding:
    if hasattr(weights, "embed_tokens"):
        return weights.embed_tokens
    if config.hidden_size != config.target_hidden_size:
        raise InputError(
            f"{what}: embed_tokens.weight is missing, and the target's embeddings of {config.target_hidden_size} "
            f"do not fit a head of {config.hidden_size}"
        )
    embeddings: nn.Embedding = target.model.get_input_embeddings()
    return embeddings


def _renamed(tensors: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name
        if plain in renamed:
            raise InputError(f"{what}: {name} is there under both namings, midlayer.* and layers.0.*")
        if plain not in _ONLY_FOR_TRAINING:
            renamed[plain] = tensor
    return renamed


def _vocabulary(
    config: Eagle3Config, maps: Mapping[str, Tensor | None], device: str, what: str
) -> DraftVocabulary | None:
    """Which of the target's tokens the head knows, None for all. Raises InputError for maps that are not one-to-one."""
    size, known = config.vocabulary, config.draft_vocabulary
    offsets, mask = maps["d2t"], maps["t2d"]
    if offsets is None:
        if known != size:
            raise InputError(f"{what}: d2t is missing, and the head knows {known} of its target's {size} tokens")
        ids = torch.arange(size)
    else:
        if offsets.shape != (known,) or offsets.is_floating_point():
            raise InputError(f"{what}: d2t has shape {list(offsets.shape)}, wanted are {known} whole numbers")
        ids = torch.arange(known) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= size or len(set(ids.tolist())) != known:
        raise InputError(f"{what}: d2t does not lead to {known} different tokens of its target's {size}")
    if mask is not None:
        expected = torch.zeros(size, dtype=torch.bool)
        expected[ids] = True
        if mask.shape != expected.shape or not torch.equal(mask.bool(), expected):
            raise InputError(f"{what}: t2d and d2t speak of different tokens")
    if torch.equal(ids, torch.arange(size)):
        return None
    return DraftVocabulary(ids.to(device), size)
