"""A sweep's cells, measurements, hours and forecast speedups, from its configuration and prompt files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from pipeline.cells import cells_of
from pipeline.engines import roofline
from pipeline.engines.devices import DEVICES, Device
from pipeline.measurement.constraints import MOST_UNFIT
from pipeline.measurement.protocol import allot
from pipeline.planning.rounds import Costing, expected_rounds
from pipeline.planning.speeds import Scene
from pipeline.records.cell import Cell, Workload
from pipeline.records.failure import InputError
from pipeline.records.plan import Plan, PlannedCell
from pipeline.records.settings import NO_LIMITS, SweepSettings, TargetChoice
from pipeline.records.shape import ModelShape
from pipeline.records.target import Candidate, DraftModel
from pipeline.workloads.load import load_prompts

TEMPLATE_TOKENS = 16
"""What a chat template is taken to add to a prompt."""
_ACCELERATORS = {"h100": "h100", "h200": "h200", "a100": "a100", "a100-80g": "a100", "l4": "l4"}
"""Ray's names of accelerators, in lower case, by device."""


def make_plan(settings: SweepSettings) -> Plan:
    """Nothing is loaded but prompts, nothing is written. Raises InputError that names the key that a plan lacks."""
    device = device_of(settings)
    prompts = {workload.name: _prompts(workload, settings) for workload in settings.workloads}
    cells = tuple(
        _cell(settings, device, cell, choice, prompts[cell.workload.name])
        for cell, choice in cells_of(settings, device.name)
    )
    each = len(settings.workloads) * len(settings.samplings) * len(settings.concurrency)
    workers = settings.cluster.workers
    loads = {choice.target.name: _load_s(choice, settings) for choice in settings.targets}
    load_s = sum(min(workers, each) * seconds for seconds in loads.values())
    worker_s = load_s + sum(cell.seconds for cell in cells)
    longest = max(loads[cell.cell.target] + cell.seconds for cell in cells)
    allowance = settings.plan.allowance
    return Plan(
        device=device.name,
        workers=workers,
        cells=cells,
        load_s=load_s,
        wall_s=max(longest, worker_s / workers),
        cell_s=ceil(allowance * longest),
        worker_hours=ceil(allowance * worker_s / 36) / 100,
        warnings=tuple(_warnings(settings, device, cells)),
    )


def device_of(settings: SweepSettings) -> Device:
    """The device that workers measure on. Raises InputError where neither ``plan.device`` nor the cluster says."""
    if settings.plan.device is not None:
        return DEVICES[settings.plan.device]
    cluster = settings.cluster
    if not cluster.gpus_per_worker:
        return DEVICES["cpu"]
    name = _ACCELERATORS.get((cluster.accelerator_type or "").lower())
    if name is None:
        known = ", ".join(name for name in DEVICES if name != "cpu")
        raise InputError(
            f"plan.device: must be set to one of {known}, as cluster.accelerator_type={cluster.accelerator_type} "
            "names none of them"
        )
    return DEVICES[name]


@dataclass(frozen=True)
class _Prompts:
    count: int
    tokens: float


def _prompts(workload: Workload, settings: SweepSettings) -> _Prompts:
    """How many, and how long by their characters; prompts too long for the workload are dropped by its measurement."""
    found = load_prompts(workload).prompts
    if workload.context_tokens is not None:
        return _Prompts(len(found), workload.context_tokens)
    each = settings.plan.characters_per_token
    lengths = [TEMPLATE_TOKENS + sum(len(message.content) for message in p.messages) / each for p in found]
    longest = workload.max_prompt_tokens or float("inf")
    kept = [length for length in lengths if length <= longest] or [longest]
    return _Prompts(len(kept), fmean(kept))


def _cell(settings: SweepSettings, device: Device, cell: Cell, choice: TargetChoice, prompts: _Prompts) -> PlannedCell:
    workload, concurrency = cell.workload, cell.concurrency
    target, shapes = _shapes(choice)
    scene = Scene(
        target=target,
        device=device,
        dtype=choice.target.dtype,
        rows=concurrency,
        context=prompts.tokens + workload.output_tokens / 2,
        overhead=settings.plan.overhead,
    )
    assumed = settings.plan.acceptance
    planned = tuple(
        scene.weigh(
            Candidate(draft=item.draft, gamma=gamma), shapes[item.draft.name], getattr(assumed, item.draft.method)
        )
        for item in choice.drafts
        for gamma in item.gammas
    )
    costing = Costing(
        scene=scene,
        planned={each.candidate: each for each in planned},
        shapes=shapes,
        protocol=settings.protocol,
        allotment=allot(prompts.count, concurrency, settings.protocol, workload.name),
        seeds=1 if cell.sampling.greedy else settings.protocol.seeds,
        prompt_tokens=prompts.tokens,
        output_tokens=workload.output_tokens,
    )
    return PlannedCell(
        cell=cell.key,
        prompts=prompts.count,
        prompt_tokens=prompts.tokens,
        tau0_ms=scene.tau0_ms,
        candidates=planned,
        rounds=costing.rounds(
            expected_rounds(
                settings.search,
                planned,
                a_a=settings.protocol.a_a,
                confirmations=1 if settings.constraints == NO_LIMITS else MOST_UNFIT,
            )
        ),
    )


def _shapes(choice: TargetChoice) -> tuple[ModelShape, Mapping[str, ModelShape | None]]:
    """The target's, and its drafts' by name: None for those whose cost follows from the target's."""
    key = f"targets.{choice.target.name}"
    allowed = "must be set to plan with: the sizes of the model's config.json, as in conf/target/smollm2.yaml"
    if choice.shape is None:
        raise InputError(f"{key}.shape: {allowed}")
    for item in choice.drafts:
        if isinstance(item.draft, DraftModel) and item.shape is None:
            raise InputError(f"{key}.drafts.{item.draft.name}.shape: {allowed}")
    return choice.shape, {item.draft.name: item.shape for item in choice.drafts}


def _weight_bytes(choice: TargetChoice) -> int:
    """Of the target and of every draft that has weights of its own."""
    target, shapes = _shapes(choice)
    total = roofline.weight_bytes(target, choice.target.dtype)
    for item in choice.drafts:
        own = roofline.draft_shape(item.draft, target, shapes[item.draft.name])
        if own is not None and item.draft.method in ("draft_model", "eagle3"):
            total += roofline.weight_bytes(own, choice.target.dtype)
    return total


def _load_s(choice: TargetChoice, settings: SweepSettings) -> float:
    """Until a worker is ready to measure a target's cells."""
    return settings.plan.start_s + _weight_bytes(choice) / (settings.plan.load_gb_s * 1e9)


def _warnings(settings: SweepSettings, device: Device, cells: Sequence[PlannedCell]) -> list[str]:
    """Targets that cannot fit the device with their drafts and the keys and values of their widest cell."""
    lines = []
    for choice in settings.targets:
        target, _ = _shapes(choice)
        tokens = max(
            cell.cell.concurrency * (cell.prompt_tokens + workload.output_tokens)
            for cell in cells
            for workload in settings.workloads
            if cell.cell.target == choice.target.name and cell.cell.workload == workload.name
        )
        needed = (_weight_bytes(choice) + tokens * roofline.kv_bytes_per_token(target, choice.target.dtype)) / 1e9
        if device.memory_gb is not None and needed > device.memory_gb:
            lines.append(
                f"{choice.target.name}: weights, drafts, keys and values take {needed:.0f} GB; "
                f"one {device.name} has {device.memory_gb:.0f}"
            )
    if settings.cluster.gpus_per_worker > 1:
        lines.append(f"cluster.gpus_per_worker={settings.cluster.gpus_per_worker}: planned as if a worker owned one")
    return lines
