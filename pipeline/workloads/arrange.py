"""The order in which a workload's prompts are dealt out to rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pipeline.workloads.prompt import Prompt


def arrange(prompts: Sequence[Prompt], shuffle_seed: int) -> tuple[Prompt, ...]:
    """``prompts`` in a random order that depends on their ids and the seed alone.

    The order of the file does not matter, and adding or removing a prompt leaves the order of the others as it was.
    """
    return tuple(sorted(prompts, key=lambda prompt: hashlib.sha256(f"{shuffle_seed}:{prompt.id}".encode()).digest()))
