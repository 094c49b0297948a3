"""What a worker asks of the cluster, and whether the cluster has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.records.failure import InputError
from pipeline.records.settings import ClusterSettings

ACCELERATOR = "accelerator_type:"


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """Whole accelerators, or CPUs: a share of a GPU shares its memory bandwidth, and no timing on it means anything."""

    cpus: int
    gpus: int
    accelerator_type: str | None
    accelerator: str

    @property
    def text(self) -> str:
        kind = f" of type {self.accelerator_type}" if self.accelerator_type else ""
        return f"{self.cpus} CPU" + (f" and {self.gpus} GPU{kind}" if self.gpus else "")


def plan_workers(settings: ClusterSettings, nodes: Sequence[Mapping[str, float]]) -> WorkerRequest:
    """One worker's request. ``nodes`` are the resources of each live node.

    Raises InputError, naming the request and the cluster, if the workers can never all be placed, or if the
    accelerator is not stated where nodes differ.
    """
    cpus = settings.cpus_per_worker or _cpu_share(settings, nodes)
    accelerator_type = settings.accelerator_type
    accelerator = "cpu"
    if settings.gpus_per_worker:
        kinds = sorted({key.removeprefix(ACCELERATOR) for node in nodes for key in node if key.startswith(ACCELERATOR)})
        if accelerator_type is None and len(kinds) > 1:
            raise InputError(
                f"cluster.accelerator_type: the cluster has {', '.join(kinds)}; state which one to measure on, "
                "since a decision holds for one accelerator"
            )
        accelerator = accelerator_type or (kinds[0] if kinds else "gpu")
    request = WorkerRequest(
        cpus=cpus, gpus=settings.gpus_per_worker, accelerator_type=accelerator_type, accelerator=accelerator
    )
    places = sum(_places(request, node) for node in nodes)
    if places < settings.workers:
        raise InputError(
            f"cluster.workers={settings.workers}: the cluster places {places} workers of {request.text}; "
            f"it has {_describe(nodes)}"
        )
    return request


def _cpu_share(settings: ClusterSettings, nodes: Sequence[Mapping[str, float]]) -> int:
    """The CPUs of all nodes shared among the workers; one for a worker whose work is on a GPU."""
    if settings.gpus_per_worker:
        return 1
    per_node = -(-settings.workers // max(1, len(nodes)))
    return max(1, min((int(node.get("CPU", 0)) for node in nodes), default=1) // per_node)


def _places(request: WorkerRequest, node: Mapping[str, float]) -> int:
    if request.accelerator_type and f"{ACCELERATOR}{request.accelerator_type}" not in node:
        return 0
    by_cpu = int(node.get("CPU", 0)) // request.cpus
    return min(by_cpu, int(node.get("GPU", 0)) // request.gpus) if request.gpus else by_cpu


def _describe(nodes: Sequence[Mapping[str, float]]) -> str:
    def one(node: Mapping[str, float]) -> str:
        kinds = [key.removeprefix(ACCELERATOR) for key in node if key.startswith(ACCELERATOR)]
        gpu = f", {int(node['GPU'])} GPU {' '.join(kinds)}".rstrip() if node.get("GPU") else ""
        return f"{int(node.get('CPU', 0))} CPU{gpu}"

    return "; ".join(one(node) for node in nodes) or "no live node"
