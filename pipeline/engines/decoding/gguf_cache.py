"""GGUF files unpacked once into safetensors folders in the user's cache, whoever asks and however often."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pipeline.engines.decoding.supported import check_supported
from pipeline.records.failure import InputError

CONVERSION = 1
"""Raised when what a conversion writes changes, so that older copies are not used."""


def converted(gguf: Path, dtype: torch.dtype, *, key: str) -> Path:
    """The folder with the safetensors and tokenizer of ``gguf``, made now if it is not there.

    The folder's name is a hash of the whole file, ``dtype`` and the version of the conversion. Raises InputError,
    beginning with ``key``, when the file cannot be read as a model or the cache cannot be written.
    """
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    name = f"{digest[:24]}-{str(dtype).removeprefix('torch.')}-v{CONVERSION}"
    try:
        return build_once(cache_folder() / name, lambda folder: _convert(gguf, dtype, folder, key))
    except OSError as error:
        raise InputError(
            f"{key}: {gguf} cannot be unpacked into {cache_folder()} ({error}); XDG_CACHE_HOME chooses another place"
        ) from error


def cache_folder() -> Path:
    """``models`` in this project's folder of the user's cache (XDG_CACHE_HOME, else ~/.cache)."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "speculative-decoding-pipeline" / "models"


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """``folder``, filled by ``build`` if it does not exist: by one process at a time, and wholly or not at all."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if folder.is_dir():  # another process made it while this one waited
            return folder
        prefix = f".{folder.name}."
        for stale in folder.parent.glob(f"{prefix}*"):  # left by a process that was killed: the lock says nobody writes
            shutil.rmtree(stale, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
        try:
            build(temporary)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the system releases when the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, dtype: torch.dtype, folder: Path, key: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        check_supported(AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name), key)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=dtype, **_unpacking())
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except InputError:
        raise
    except (ImportError, KeyError, NotImplementedError, ValueError) as error:
        raise InputError(
            f"{key}: {gguf} cannot be read as a GGUF model: {str(error).strip().splitlines()[0]}"
        ) from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unpacking() -> dict[str, object]:
    """What asks transformers for plain weights; versions without ``GgufConfig`` know nothing else."""
    import transformers

    packed = getattr(transformers, "GgufConfig", None)
    return {} if packed is None else {"quantization_config": packed(dequantize=True)}
