"""Whether workers fit a cluster is known before any is asked for."""

from __future__ import annotations

import pytest

from pipeline.cluster.resources import plan_workers
from pipeline.records.failure import InputError
from pipeline.records.settings import ClusterSettings

LAPTOP = {"CPU": 8.0}
H100 = {"CPU": 64.0, "GPU": 8.0, "accelerator_type:H100": 1.0}
L4 = {"CPU": 16.0, "GPU": 1.0, "accelerator_type:L4": 1.0}


@pytest.mark.parametrize(("workers", "cpus"), [(1, 8), (2, 4), (3, 2), (8, 1)])
def test_workers_share_a_machines_cpus(workers, cpus):
    assert plan_workers(ClusterSettings(workers=workers), [LAPTOP]).cpus == cpus


def test_a_gpu_worker_owns_whole_gpus_and_their_type_is_the_accelerator():
    request = plan_workers(ClusterSettings(workers=4, gpus_per_worker=2), [H100])
    assert (request.gpus, request.accelerator) == (2, "H100")


@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        (ClusterSettings(workers=9), [LAPTOP]),
        (ClusterSettings(cpus_per_worker=9), [LAPTOP]),
        (ClusterSettings(gpus_per_worker=1), [LAPTOP]),
        (ClusterSettings(workers=5, gpus_per_worker=2), [H100]),
        (ClusterSettings(gpus_per_worker=1, accelerator_type="H200"), [H100, L4]),
        (ClusterSettings(), []),
    ],
)
def test_workers_that_can_never_be_placed_are_refused_naming_request_and_cluster(settings, nodes):
    with pytest.raises(
        InputError, match=r"cluster\.workers=\d+: the cluster places \d+ workers of .*; it has "
    ) as error:
        plan_workers(settings, nodes)
    assert "\n" not in str(error.value)


def test_a_mixed_cluster_must_state_its_accelerator():
    with pytest.raises(InputError, match=r"cluster\.accelerator_type.*H100, L4"):
        plan_workers(ClusterSettings(gpus_per_worker=1), [H100, L4])
    stated = plan_workers(ClusterSettings(gpus_per_worker=1, accelerator_type="L4"), [H100, L4])
    assert stated.accelerator == "L4"
