"""Medusa heads (Cai et al. 2024, arXiv 2401.10774) in the layout of their authors' checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pipeline.engines.decoding.heads.files import HeadFiles, assign, read_tensors
from pipeline.engines.decoding.loading import LoadedModel
from pipeline.engines.decoding.packing import pack
from pipeline.records.failure import InputError

_NAME = re.compile(r"(?P<prefix>(?:.*\.)?)(?P<head>\d+)\.(?P<layer>\d+)\.(?P<rest>linear\.weight|linear\.bias|weight)")


class ResBlock(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


class MedusaHeads:
    """``count`` heads: blocks on the final hidden state, then an output layer, the target's own where it is shared."""

    def __init__(self, heads: nn.ModuleList, output: nn.Module | None, hidden_size: int, revision: str) -> None:
        self._heads = heads
        self._output = output
        self.hidden_size = hidden_size
        self.revision = revision
        self.weight_bytes = sum(weight.numel() * weight.element_size() for weight in heads.parameters())
        pack(heads)

    @property
    def count(self) -> int:
        return len(self._heads)

    def logits(self, hidden: Tensor, head: int) -> Tensor:
        """Logits [A, V] of ``head`` from final hidden states [A, H].

        A state is that after reading some token; the target's own output layer predicts the token after it, and head i
        the token i + 2 places after it.
        """
        out: Tensor = self._heads[head](hidden)
        if self._output is not None:
            out = self._output(out)
        return out


def load_medusa(files: HeadFiles, target: LoadedModel, device: str) -> MedusaHeads:
    """Heads for ``target``, in its dtype.

    config.json: ``medusa_num_heads``, ``medusa_num_layers``; ``original_lm_head`` true for heads that share the
    target's output layer and have none of their own. Tensors: ``I.J.linear.weight`` and ``.bias`` of block J of head I,
    ``I.L.weight`` of the output layer after L blocks, all under one prefix or none. The file may hold more heads than
    the configuration counts, as published ones do: all of them are used. Raises InputError for what does not fit.
    """
    settings, config = files.settings, target.model.config.get_text_config()
    least, layers = settings.integer("medusa_num_heads"), settings.integer("medusa_num_layers", 1)
    shares = settings.flag("original_lm_head")
    for name, own in (("hidden_size", config.hidden_size), ("vocab_size", config.vocab_size)):
        said = settings.integer(name, own)
        if said != own:
            raise InputError(f"{files.what}: {name} is {said}, its target's {own}: these heads belong to another model")
    settings.ignore("base_model_name_or_path", "version")
    settings.refuse_the_rest()

    tensors = _without_prefix(read_tensors(files), files.what)
    count = max(least, *(1 + int(name.split(".")[0]) for name in tensors))
    with torch.device("meta"):
        heads = nn.ModuleList(
            nn.Sequential(
                *(ResBlock(config.hidden_size) for _ in range(layers)),
                *(() if shares else (nn.Linear(config.hidden_size, config.vocab_size, bias=False),)),
            )
            for _ in range(count)
        )
    assign(heads, tensors, target.model.dtype, device, files.what)
    output = target.model.get_output_embeddings() if shares else None
    return MedusaHeads(heads, output, config.hidden_size, files.location.revision)


def _without_prefix(tensors: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """``tensors`` by HEAD.LAYER.NAME. Raises InputError for names of another form or under another prefix."""
    plain: dict[str, Tensor] = {}
    prefix: str | None = None
    for name, tensor in sorted(tensors.items()):
        match = _NAME.fullmatch(name)
        if match is None or match["prefix"] != (match["prefix"] if prefix is None else prefix):
            raise InputError(f"{what}: {name} is not a tensor of Medusa heads, which are named HEAD.LAYER.…")
        prefix = match["prefix"]
        plain[name.removeprefix(prefix)] = tensor
    if not plain:
        raise InputError(f"{what}: holds no tensors")
    return plain
