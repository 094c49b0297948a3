"""The files of a trained head: its configuration first, its tensors once that is found to fit."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.engines.decoding.heads.settings import Settings
from pipeline.engines.decoding.sources import MAKE_A_HEAD, Location, locate
from pipeline.records.failure import InputError
from pipeline.records.target import Eagle3, Head

_PICKLED = ("*.bin", "*.pt", "*.pth")


@dataclass(frozen=True)
class HeadFiles:
    """Where a head lies and what its config.json says; ``what`` begins every message about it."""

    location: Location
    what: str
    settings: Settings
    allow_pickle: bool


def find_head(draft: Head, allow_pickle: bool) -> HeadFiles:
    """Find ``draft`` and read its configuration, no weights yet. Raises InputError for what cannot be found or read."""
    key = f"drafts.{draft.name}.source"
    remedy = MAKE_A_HEAD if isinstance(draft, Eagle3) else ""
    location = locate(draft.source, draft.revision, key=key, allow_pickle=allow_pickle, remedy=remedy)
    what = f"{key}={draft.source}"
    if location.kind == "gguf":
        raise InputError(f"{what}: a head is a folder or hub id with config.json and safetensors, not GGUF")
    try:
        entries = json.loads((location.path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{what}: config.json cannot be read: {error}") from None
    if not isinstance(entries, dict):
        raise InputError(f"{what}: config.json is not a mapping")
    return HeadFiles(location, what, Settings(entries, f"{what}: config.json"), allow_pickle)


def read_tensors(files: HeadFiles) -> dict[str, Tensor]:
    """All tensors by name, on the CPU.

    Safetensors; where there are none and ``allow_pickle`` says so, pickles, of which only tensors are read.
    """
    found = _weights(files, ("*.safetensors",))
    if not found and files.allow_pickle:
        found = _weights(files, _PICKLED)
    if not found:
        raise InputError(f"{files.what}: has no weights that may be read (allowed: safetensors; or set allow_pickle)")
    tensors: dict[str, Tensor] = {}
    for path in found:
        for name, tensor in _read(path, files.what).items():
            if name in tensors:
                raise InputError(f"{files.what}: {name} is in more than one file, such as {path.name}")
            tensors[name] = tensor
    return tensors


def assign(module: nn.Module, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: str, what: str) -> None:
    """Give ``module`` (made without storage, on ``meta``) the ``tensors`` of its parameters' names, frozen.

    Raises InputError that names the first tensor that is missing, left over, or of another shape or kind.
    """
    wanted = module.state_dict()
    check_names(wanted, tensors, what)
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise InputError(
                f"{what}: {name} has shape {list(tensor.shape)}, its configuration says {list(wanted[name].shape)}"
            )
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise InputError(
                f"{what}: {name} is {str(tensor.dtype).removeprefix('torch.')}: quantized heads are not read"
            )
    ready = {name: tensor.to(device=device, dtype=dtype).contiguous() for name, tensor in tensors.items()}
    module.load_state_dict(ready, assign=True)
    module.eval().requires_grad_(False)


def check_names(wanted: Mapping[str, object], found: Mapping[str, object], what: str) -> None:
    """Raise InputError for the first name that only one of the two has."""
    if missing := sorted(wanted.keys() - found.keys()):
        raise InputError(f"{what}: {missing[0]} is missing ({len(missing)} tensors are)")
    if unexpected := sorted(found.keys() - wanted.keys()):
        raise InputError(f"{what}: {unexpected[0]} is not a tensor of such a head ({len(unexpected)} are not)")


def _weights(files: HeadFiles, patterns: tuple[str, ...]) -> list[Path]:
    folder = files.location.path
    if files.location.kind == "hub":
        try:
            snapshot = snapshot_download(
                files.location.source, revision=files.location.revision, allow_patterns=list(patterns)
            )
            folder = Path(snapshot)
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
            raise InputError(f"{files.what}: its weights cannot be had: {str(error).splitlines()[0]}") from None
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def _read(path: Path, what: str) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise InputError(f"{what}: {path.name} cannot be read: {str(error).strip().splitlines()[0]}") from None
    if not isinstance(tensors, dict) or any(not isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise InputError(f"{what}: {path.name} holds more than tensors by name")
    return tensors
