"""``python -m jobs.sweep [overrides]``: measure and decide every cell of a configuration."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from jobs.refusal import refuse
from pipeline.config import load_settings
from pipeline.interrupt import Interrupt
from pipeline.records.failure import InputError
from pipeline.report.console import make_progress, print_outcome
from pipeline.sweep import run_sweep

USAGE = """usage: python -m jobs.sweep [KEY=VALUE ...]

Measures when speculative decoding pays, for every cell of target × workload × sampling × concurrency.
  target=[smollm2]  workload=[code_edit,chat]  'sampling=[greedy,t07_p95]'  'concurrency=[1,4]'
  targets.smollm2.drafts.ngram.gammas=[1,2,4]   workloads.chat.output_tokens=64
  output_dir=runs  fresh=true  reuse=true
Every key, with its default and what it means, stands in conf/sweep.yaml; the same command again resumes."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: done; 1: every cell failed; 2: wrong input; 128 + n: ended by signal n, resumable."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE)
        return 0
    interrupt = Interrupt()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without γ shows ?, and the sweep goes on
    try:
        settings = load_settings(arguments)
        with interrupt, make_progress() as progress:
            outcome = run_sweep(settings, progress, interrupt)
    except (InputError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        print("stopped at once; what was measured is kept, and the same command goes on", file=sys.stderr)
        return 130
    print_outcome(outcome)
    if outcome.interrupted:
        return interrupt.exit_code
    failed = outcome.decisions and all(decision.status == "failed" for decision in outcome.decisions)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
