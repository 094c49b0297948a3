"""``python -m jobs.plan [overrides]``: what a sweep would take and might find, before anything is paid for."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from jobs.refusal import refuse
from pipeline.config import load_settings
from pipeline.planning.plan import make_plan
from pipeline.records.failure import InputError
from pipeline.report.plan import print_plan

USAGE = """usage: python -m jobs.plan [KEY=VALUE ...]

Takes what `python -m jobs.sweep` takes, and prints cells, candidates, measurements, worker-hours and forecast speedups.
Nothing is loaded, downloaded, started or written.
  target=[qwen3_8b]  cluster=gpu  cluster.accelerator_type=H100  'concurrency=[1,8,32]'
  plan.device=l4  plan.acceptance.ngram=0.2  plan.every_candidate=true
Every key, with its default and what it means, stands in conf/sweep.yaml."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: planned; 2: wrong input."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE)
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without γ shows ?
    try:
        settings = load_settings(arguments)
        plan = make_plan(settings)
    except (InputError, OSError) as error:
        return refuse(error)
    print_plan(plan, every_candidate=settings.plan.every_candidate)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
