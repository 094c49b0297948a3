"""A sweep's settings from conf/ and overrides, checked against the records; their identity; their YAML."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TypeVar, get_args

from omegaconf import OmegaConf

from pipeline.bounds import check_bounds, check_counts, check_name
from pipeline.checked import mapping, record_of, value_of
from pipeline.compose import CONF, Tree, composed, options, without_credentials
from pipeline.records.cell import Sampling, Workload
from pipeline.records.failure import InputError
from pipeline.records.head_training import CollectSettings, FitSettings, HeadSettings, HeadTraining
from pipeline.records.settings import (
    NO_LIMITS,
    Budget,
    ClusterSettings,
    Constraints,
    DraftChoice,
    EngineSettings,
    PlanSettings,
    PolicySettings,
    Protocol,
    SearchSettings,
    SweepSettings,
    TargetChoice,
    TrackingSettings,
)
from pipeline.records.shape import ModelShape
from pipeline.records.target import Draft, DraftModel, Ngram, Target
from pipeline.workloads.render import read_template

T = TypeVar("T")

_METHODS: Mapping[str, type[Draft]] = {record.method: record for record in get_args(Draft)}
_GROUPS = {"targets": "target", "workloads": "workload", "samplings": "sampling"}
_NOT_MEASURED = (
    "name",
    "output_dir",
    "fresh",
    "reuse",
    "cluster",
    "tracking",
    "budget",
    "policy",
    "constraints",
    "plan",
)


def load_settings(overrides: Sequence[str], config_name: str = "sweep") -> SweepSettings:
    """The sweep that ``config_name`` describes once ``overrides`` (Hydra's grammar) are applied.

    ``config_name`` is the name of a file of conf/, or the path of a YAML file, such as one that ``resolved_yaml``
    wrote. Raises InputError: one line that names the key and what it may be.
    """
    tree = composed(overrides, config_name)
    known = [field.name for field in fields(SweepSettings)] + ["output_tokens"]
    for key in tree:
        if key not in known:
            raise InputError(f"{key}: unknown key; known: {', '.join(known)}")
    name = value_of(str, tree.get("name"), "name")
    check_name(name, "name")
    concurrency = value_of(tuple[int, ...], tree.get("concurrency"), "concurrency")
    check_counts(concurrency, "concurrency")
    return SweepSettings(
        name=name,
        output_dir=_output_dir(tree),
        targets=tuple(_target(key, body) for key, body in _named(tree, "targets").items()),
        workloads=_workloads(tree),
        samplings=tuple(
            record_of(Sampling, body, f"samplings.{key}", name=key) for key, body in _named(tree, "samplings").items()
        ),
        concurrency=concurrency,
        fresh=value_of(bool, tree.get("fresh", False), "fresh"),
        reuse=value_of(bool, tree.get("reuse", False), "reuse"),
        protocol=record_of(Protocol, tree.get("protocol", {}), "protocol"),
        search=record_of(SearchSettings, tree.get("search", {}), "search"),
        engine=record_of(EngineSettings, tree.get("engine", {}), "engine"),
        cluster=record_of(ClusterSettings, tree.get("cluster", {}), "cluster"),
        tracking=record_of(TrackingSettings, tree.get("tracking", {}), "tracking"),
        budget=record_of(Budget, tree.get("budget", {}), "budget"),
        policy=record_of(PolicySettings, tree.get("policy", {}), "policy"),
        constraints=record_of(Constraints, tree.get("constraints", {}), "constraints"),
        plan=record_of(PlanSettings, tree.get("plan", {}), "plan"),
    )


def load_head_training(overrides: Sequence[str]) -> HeadTraining:
    """What conf/train_head.yaml says once ``overrides`` are applied. Raises InputError as ``load_settings`` does."""
    tree = composed(overrides, "train_head")
    own = [field.name for field in fields(HeadTraining) if field.name not in ("target", "ngram")]
    known = [*own, "targets", "output_tokens"]
    for key in tree:
        if key not in known:
            raise InputError(f"{key}: unknown key; known: {', '.join(known)}")
    targets = [_target(key, body) for key, body in _named(tree, "targets").items()]
    if len(targets) != 1:
        names = ", ".join(choice.target.name for choice in targets)
        raise InputError(f"targets: a head is made for one target, not for {names}; write target=[NAME]")
    ngrams = [choice.draft for choice in targets[0].drafts if isinstance(choice.draft, Ngram)]
    name = targets[0].target.name if tree.get("name") is None else value_of(str, tree["name"], "name")
    check_name(name, "name")
    settings = HeadTraining(
        name=name,
        output_dir=_output_dir(tree),
        target=targets[0].target,
        ngram=ngrams[0] if ngrams else Ngram(name="ngram"),
        workloads=_workloads(tree),
        minutes=value_of(float, tree.get("minutes", 30.0), "minutes"),
        seed=value_of(int, tree.get("seed", 0), "seed"),
        device=record_of(EngineSettings, {"device": tree.get("device", "auto")}, "engine").device,
        fresh=value_of(bool, tree.get("fresh", False), "fresh"),
        collect=record_of(CollectSettings, tree.get("collect", {}), "collect"),
        head=record_of(HeadSettings, tree.get("head", {}), "head"),
        fit=record_of(FitSettings, tree.get("fit", {}), "fit"),
        tracking=record_of(TrackingSettings, tree.get("tracking", {}), "tracking"),
    )
    check_bounds(settings, "train_head")
    for workload in settings.workloads:
        if workload.context_tokens is not None:
            raise InputError(
                f"workloads.{workload.name}: a head learns from prompts as they are, without context_tokens"
            )
    return settings


def sweep_id(settings: SweepSettings, content: Mapping[str, str] | None = None) -> str:
    """``NAME-`` and ten hexadecimal digits of a hash of what is measured.

    ``content`` tells what the files named in ``settings`` hold (a hash by key), so that an edited prompt file or
    another model under the same name is another sweep. Where results and workers are placed, what is tracked or
    resumed, the budget, the policy and the constraints, which only judge, do not count, nor does the order of anything;
    the accelerator asked for does, and whether there are constraints at all, for under them no search is cut short.
    """
    measured = {key: value for key, value in _tree(settings).items() if key not in _NOT_MEASURED}
    measured["concurrency"] = sorted(settings.concurrency)
    measured["accelerator_type"] = settings.cluster.accelerator_type
    measured["content"] = dict(content or {})
    if settings.constraints != NO_LIMITS:
        measured["limited"] = True
    canonical = json.dumps(measured, sort_keys=True, separators=(",", ":"))
    return f"{settings.name}-{hashlib.sha256(canonical.encode()).hexdigest()[:10]}"


def resolved_yaml(settings: SweepSettings) -> str:
    """``settings`` as a file that ``load_settings`` reads back, without credentials."""
    tree = _tree(settings, shapes=True)
    for section, key, address in (
        ("tracking", "uri", settings.tracking.uri),
        ("cluster", "address", settings.cluster.address),
    ):
        if address is not None:
            tree[section] = {**mapping(tree[section], section), key: without_credentials(address)}
    return OmegaConf.to_yaml(OmegaConf.create({key: _literal(value) for key, value in tree.items()}))


def _literal(value: object) -> object:
    """``value`` with every ``${`` in its strings escaped: it is text by now, as in a stop string, no interpolation."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", value)
    return value


def _tree(settings: SweepSettings, *, shapes: bool = False) -> Tree:
    """``settings`` in the form of a configuration file: what has a name is found under it; ``shapes`` only if asked."""
    tree: Tree = asdict(settings)
    tree["concurrency"] = list(settings.concurrency)
    tree["targets"] = {
        choice.target.name: {
            **_body(choice.target),
            **_shape_of(choice, shapes),
            "drafts": {
                each.draft.name: {**_body(each.draft), **_shape_of(each, shapes), "gammas": list(each.gammas)}
                for each in choice.drafts
            },
        }
        for choice in settings.targets
    }
    tree["workloads"] = {
        workload.name: {
            **_body(workload),
            "categories": list(workload.categories),
            "stop": list(workload.stop),
            "stop_token_ids": list(workload.stop_token_ids),
        }
        for workload in settings.workloads
    }
    tree["samplings"] = {sampling.name: _body(sampling) for sampling in settings.samplings}
    return tree


def _shape_of(choice: TargetChoice | DraftChoice, asked: bool) -> dict[str, object]:
    return {"shape": asdict(choice.shape)} if asked and choice.shape is not None else {}


def _body(record: Target | Draft | Workload | Sampling) -> dict[str, object]:
    return {key: value for key, value in asdict(record).items() if key != "name"}


def _output_dir(tree: Tree) -> str:
    folder = value_of(str, tree.get("output_dir", "runs"), "output_dir")
    if not folder.strip() or "://" in folder:
        raise InputError(f"output_dir: must be a folder, not {without_credentials(folder)!r}")
    path = str(Path(folder).expanduser().absolute())
    if any(sign in path for sign in "?%#"):
        raise InputError(
            f"output_dir: {path!r} holds a ?, % or #, which the address of a database cannot; choose another"
        )
    return path


def _target(name: str, body: Tree) -> TargetChoice:
    key = f"targets.{name}"
    drafts, shape = body.pop("drafts", {}), _shape(body, key)
    target = record_of(Target, body, key, name=name, beside=("drafts", "shape"))
    read_template(target)
    if not isinstance(drafts, dict) or not drafts:
        raise InputError(f"{key}.drafts: must name at least one draft; known methods: {', '.join(_METHODS)}")
    choices = [_draft(draft, value, f"{key}.drafts.{draft}") for draft, value in drafts.items()]
    ordered = tuple(sorted(choices, key=lambda choice: choice.draft.name))
    return TargetChoice(target=target, drafts=ordered, shape=shape)


def _draft(name: str, value: object, key: str) -> DraftChoice:
    check_name(name, key)
    body = mapping(value, key)
    method = body.get("method")
    if not isinstance(method, str) or method not in _METHODS:
        said = "is missing" if method is None else f"{method!r} is unknown"
        raise InputError(f"{key}.method: {said}; known: {', '.join(_METHODS)}")
    if "gammas" not in body:
        raise InputError(f"{key}.gammas: is missing; a list of numbers of proposed tokens, each at least 1")
    gammas = value_of(tuple[int, ...], body.pop("gammas"), f"{key}.gammas")
    check_counts(gammas, f"{key}.gammas")
    shape = _shape(body, key)
    draft = record_of(_METHODS[method], body, key, name=name, beside=("gammas", "shape"))
    if shape is not None and not isinstance(draft, DraftModel):
        raise InputError(f"{key}.shape: only a draft_model has a shape of its own; that of {method} follows its target")
    return DraftChoice(draft=draft, gammas=tuple(sorted(gammas)), shape=shape)


def _shape(body: Tree, key: str) -> ModelShape | None:
    """Taken out of ``body``."""
    value = body.pop("shape", None)
    return None if value is None else record_of(ModelShape, value, f"{key}.shape")


def _workloads(tree: Tree) -> tuple[Workload, ...]:
    common = {"output_tokens": tree["output_tokens"]} if "output_tokens" in tree else {}
    workloads = tuple(
        record_of(Workload, each, key, name=as_name)
        for name, body in _named(tree, "workloads").items()
        for key, as_name, each in _by_length(name, {**common, **body}, f"workloads.{name}")
    )
    names = [workload.name for workload in workloads]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"workloads.{name}: is the name of two workloads, one of them made by context_tokens")
    return workloads


def _by_length(name: str, body: Tree, key: str) -> Iterator[tuple[str, str, Tree]]:
    """The key, name and body of each workload that a list of ``context_tokens`` makes of one, the plain one for 0.

    A number is a workload's own length already, as ``resolved_yaml`` writes it.
    """
    lengths = body.get("context_tokens")
    if not isinstance(lengths, list):
        yield key, name, body
        return
    lengths = value_of(tuple[int, ...], lengths, f"{key}.context_tokens")
    for length in lengths:
        if length < 0:
            raise InputError(f"{key}.context_tokens: each must be at least 0 (prompts as they are), not {length}")
        if lengths.count(length) > 1:
            raise InputError(f"{key}.context_tokens: {length} is given twice")
    if any(lengths) and body.get("format", "bundled") == "bundled" and body.get("path") is None:
        body = {**body, "path": name}  # the set is named after the workload, which gets another name
    for length in lengths or (0,):
        if length:
            yield key, f"{name}_ctx{length}", {**body, "context_tokens": length}
        elif any(lengths):
            yield key, name, {**body, "context_tokens": None, "context_path": None}
        else:
            yield key, name, {**body, "context_tokens": None}


def _named(tree: Tree, key: str) -> dict[str, Tree]:
    """The mappings under ``key`` by name, at least one."""
    group = _GROUPS[key]
    entries = mapping(tree.get(key, {}), key)
    if not entries:
        available = ", ".join(options(CONF / group))
        raise InputError(f"{key}: choose at least one, as in {group}=[NAME]; available: {available}")
    for name in entries:
        check_name(name, f"{key}.{name}")
    return {name: mapping(value, f"{key}.{name}") for name, value in entries.items()}
