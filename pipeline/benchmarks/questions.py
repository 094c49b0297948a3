"""The prompts of the decoding benchmark."""

from __future__ import annotations

from pipeline.benchmarks.peer_transformers import Tokens
from pipeline.engines.contract import Tokenizer
from pipeline.records.cell import Workload
from pipeline.records.failure import InputError
from pipeline.records.target import Target
from pipeline.workloads.load import load_prompts
from pipeline.workloads.render import render

SPEC_BENCH = ("coding", "math_reasoning", "translation", "writing")
BUNDLED = ("code_edit", "math", "translate", "creative")


def questions(spec_bench: str | None, count: int, target: Target, tokenizer: Tokenizer) -> list[Tokens]:
    """The first ``count`` of each of four kinds, kind after kind, as the target is asked them.

    ``spec_bench``: a Spec-Bench file, None for this project's own prompts. Raises InputError where there are too few.
    """
    found: list[Tokens] = []
    for kind in SPEC_BENCH if spec_bench else BUNDLED:
        if spec_bench:
            workload = Workload(name=kind, format="spec_bench", path=spec_bench, categories=(kind,), turns="first")
        else:
            workload = Workload(name=kind, turns="first")
        ready = [prompt for prompt in load_prompts(workload).prompts if not prompt.awaits]
        if len(ready) < count:
            raise InputError(f"prompts={count}: {kind} has only {len(ready)}")
        found += [render(prompt, target, tokenizer) for prompt in ready[:count]]
    return found
