"""A workload's prompts, from the sets that come with the product or from a team's own files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO

from pipeline.records.cell import Workload
from pipeline.records.failure import InputError
from pipeline.workloads.chat import chat_prompts
from pipeline.workloads.entry import Found
from pipeline.workloads.plain_text import text_prompts
from pipeline.workloads.prompt import Prompt
from pipeline.workloads.sharegpt import sharegpt_prompts
from pipeline.workloads.spec_bench import spec_bench_prompts

_BUNDLED = files("pipeline.workloads") / "prompts"


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """``prompts`` in the file's order, at least one, with ids that differ.

    ``content_hash`` is the SHA-256 of what they say, in hexadecimal: files that differ only in form hash alike.
    """

    prompts: tuple[Prompt, ...]
    content_hash: str


def load_prompts(workload: Workload) -> PromptSet:
    """Read ``workload``'s prompts; neither model nor tokenizer is needed.

    A relative path is taken from the working directory. Raises InputError, one line, that names the file and the line
    or entry, for whatever cannot be used.
    """
    digest = hashlib.sha256()
    prompts: list[Prompt] = []
    ids: set[str] = set()
    with _opened(workload) as (label, stream):
        for found in _parsed(workload, label, stream):
            prompt = found.prompt
            if prompt.id in ids:
                raise InputError(f"{found.where}: id {prompt.id!r} is used twice; each prompt needs its own")
            ids.add(prompt.id)
            prompts.append(prompt)
            digest.update(_canonical(prompt))
        if not prompts:
            raise InputError(f"{label}: holds no prompts")
    return PromptSet(prompts=tuple(prompts), content_hash=digest.hexdigest())


def bundled_names() -> tuple[str, ...]:
    """The prompt sets that come with the product, sorted."""
    return tuple(
        sorted(file.name.removesuffix(".jsonl") for file in _BUNDLED.iterdir() if file.name.endswith(".jsonl"))
    )


def _parsed(workload: Workload, label: str, stream: IO[bytes]) -> Iterator[Found]:
    first_turn_only = workload.turns == "first"
    match workload.format:
        case "bundled" | "chat":
            return chat_prompts(label, stream)
        case "spec_bench":
            return spec_bench_prompts(label, stream, workload.categories, first_turn_only=first_turn_only)
        case "sharegpt":
            return sharegpt_prompts(label, stream, first_turn_only=first_turn_only)
        case "text":
            return text_prompts(label, stream)


@contextmanager
def _opened(workload: Workload) -> Iterator[tuple[str, IO[bytes]]]:
    """What to call the workload's file in a message, and the file."""
    if workload.format == "bundled":
        name = workload.path or workload.name
        if name not in bundled_names():
            raise InputError(
                f"workload {workload.name}: no bundled prompts {name!r}; available: {', '.join(bundled_names())}"
            )
        with (_BUNDLED / f"{name}.jsonl").open("rb") as stream:
            yield f"{name}.jsonl", stream
        return
    if workload.path is None:
        raise InputError(f"workload {workload.name}: format {workload.format} needs the path of a file of prompts")
    try:
        stream = Path(workload.path).expanduser().open("rb")
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # ValueError: a NUL in the path; RuntimeError: an unknown ~user
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{workload.path}: cannot be read ({reason}); workload {workload.name} needs it") from None
    with stream:
        yield workload.path, stream


def _canonical(prompt: Prompt) -> bytes:
    turns = [(message.role, message.content) for message in prompt.messages]
    return json.dumps([prompt.id, turns, prompt.awaits], ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
