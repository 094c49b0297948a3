"""``python -m jobs.train_head [overrides]``: make a draft head for a target that has none."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from rich.console import Console

from jobs.refusal import refuse
from pipeline.config import load_head_training
from pipeline.interrupt import Interrupt
from pipeline.records.failure import InputError
from pipeline.report.training import print_head, training_progress
from pipeline.training.job import train_head

USAGE = """usage: python -m jobs.train_head [KEY=VALUE ...]

Makes an EAGLE-3 head for a target from what that writes itself, and measures it beside n-gram on held-out prompts.
  target=[smollm2]  workload=[chat]  minutes=30  name=NAME  output_dir=runs  fresh=true
  collect.sampled=0.2  'collect.text=[notes.txt]'  fit.epochs=6  head.vocabulary=8192  tracking=none
Every key, with its default and what it means, stands in conf/train_head.yaml; the same command again resumes.
The head lies in OUTPUT_DIR/heads/NAME; a sweep takes it as a draft by
  python -m jobs.sweep '+draft@targets.smollm2.drafts.head=smollm2_head'"""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: done; 2: wrong input; 128 + n: ended by signal n, resumable."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE)
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    interrupt = Interrupt()
    try:
        settings = load_head_training(arguments)
        with interrupt, training_progress() as progress:
            outcome = train_head(settings, progress, lambda: interrupt.requested)
    except (InputError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        print("stopped at once; what was collected is kept, and the same command goes on", file=sys.stderr)
        return 130
    print_head(outcome.folder, outcome.report, outcome.ui_command, Console(highlight=False))
    return 0 if outcome.report is not None else interrupt.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
