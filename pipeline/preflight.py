"""What can be known before anything is started: prompts, models, and where the output would lie."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.engines.decoding.sources import MAKE_A_HEAD, Location, locate
from pipeline.records.failure import InputError
from pipeline.records.settings import SweepSettings
from pipeline.records.target import Eagle3, Sourced, Target
from pipeline.workloads.load import load_prompts
from pipeline.workloads.material import read_material
from pipeline.workloads.render import read_template


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """``prompts``: how many each workload has; ``content``: a hash by key of what the named files hold."""

    prompts: Mapping[str, int]
    content: Mapping[str, str]


def check(settings: SweepSettings) -> Preflight:
    """Raises InputError for what cannot work, before Ray, a database or a model is touched."""
    _check_output_outlives(settings)
    content: dict[str, str] = {}
    prompts: dict[str, int] = {}
    for workload in settings.workloads:
        loaded = load_prompts(workload)
        prompts[workload.name] = len(loaded.prompts)
        content[f"workloads.{workload.name}"] = loaded.content_hash
        if workload.context_tokens is not None:
            content[f"workloads.{workload.name}.context"] = read_material(workload).content_hash
    for choice in settings.targets:
        template = read_template(choice.target)
        if template is not None:
            content[f"targets.{choice.target.name}.chat_template"] = hashlib.sha256(template.encode()).hexdigest()
    if starts_ray_here(settings) and settings.engine.name == "decoding":
        content |= _find_models(settings)
    return Preflight(prompts=prompts, content=content)


def starts_ray_here(settings: SweepSettings) -> bool:
    """Whether the workers will share this machine's files."""
    return settings.cluster.address is None and "RAY_ADDRESS" not in os.environ


def _find_models(settings: SweepSettings) -> dict[str, str]:
    """The revision of every model; a draft shares its target's leave to be a pickle."""
    revisions: dict[str, str] = {}
    for choice in settings.targets:
        target = choice.target
        key = f"targets.{target.name}.source"
        location = locate(target.source, target.revision, key=key, allow_pickle=target.allow_pickle)
        revisions[key] = location.revision
        _check_stop_tokens(settings, target, location)
        _check_stop_strings(settings, target, location)
        for item in choice.drafts:
            draft = item.draft
            if isinstance(draft, Sourced):
                key = f"targets.{target.name}.drafts.{draft.name}.source"
                remedy = MAKE_A_HEAD if isinstance(draft, Eagle3) else ""
                found = locate(draft.source, draft.revision, key=key, allow_pickle=target.allow_pickle, remedy=remedy)
                revisions[key] = found.revision
    return revisions


def _check_stop_tokens(settings: SweepSettings, target: Target, location: Location) -> None:
    """Stop ids that are no tokens of ``target``, where its config.json tells; else its worker finds out."""
    if location.kind == "gguf":
        return
    try:
        config = json.loads((location.path / "config.json").read_text(encoding="utf-8"))
        vocabulary = config.get("vocab_size") or config["text_config"]["vocab_size"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # loading says what is wrong with it
    for workload in settings.workloads:
        for token in workload.stop_token_ids:
            if isinstance(vocabulary, int) and token >= vocabulary:
                raise InputError(
                    f"workloads.{workload.name}.stop_token_ids: {token} is no token of target {target.name}; "
                    f"allowed are 0 to {vocabulary - 1}"
                )


def _check_stop_strings(settings: SweepSettings, target: Target, location: Location) -> None:
    """Stop strings that are special tokens of ``target``, where its own tokenizer.json tells; else its worker does."""
    workloads = [workload for workload in settings.workloads if workload.stop]
    if not workloads or location.kind == "gguf" or target.tokenizer is not None:
        return
    try:
        added = json.loads((location.path / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        special = {token["content"]: token["id"] for token in added if token["special"]}
    except (OSError, ValueError, LookupError, TypeError):
        return
    for workload in workloads:
        for stop in workload.stop:
            if stop in special:
                raise InputError(
                    f"workloads.{workload.name}.stop: {stop!r} is a special token of target {target.name}, which has "
                    f"no text; give its id {special[stop]} in stop_token_ids"
                )


def _check_output_outlives(settings: SweepSettings) -> None:
    """Refuse to write into the throw-away copy of the working directory that a Ray job runs in."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ and Path(settings.output_dir).is_relative_to(Path.cwd()):
        raise InputError(
            f"output_dir={settings.output_dir}: lies in this job's working directory, which Ray deletes; "
            "give an absolute path on storage that outlives the job"
        )
