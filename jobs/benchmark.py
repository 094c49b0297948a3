"""``python -m jobs.benchmark NAME [key=value ...]``: a table, and ``runs/benchmarks/NAME.{json,md}``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jobs.refusal import refuse
from pipeline.benchmarks.catalog import BENCHMARKS
from pipeline.benchmarks.options import split
from pipeline.benchmarks.rows import Report, as_json
from pipeline.benchmarks.table import markdown_table
from pipeline.benchmarks.terminal import print_report
from pipeline.records.failure import InputError
from pipeline.tracking.atomic import write_atomically

OUTPUT_DIR = "runs/benchmarks"
USAGE = """usage: python -m jobs.benchmark NAME [KEY=VALUE ...]

Measures what the README claims, side by side with peers, prints a table and writes NAME.json, NAME.md.
  decoding tokens=64 repeats=3 spec_bench=spec_bench.jsonl source=MODEL threads=2
  lossless samples=20000 processes=2
  gpu minutes=8, on a machine with a GPU; needs torch, transformers, numpy and pandas alone
  search cells=2000 processes=2 only=coverage skip=real
  output_dir=runs/benchmarks"""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: measured, whether or not what was wanted holds; 1: something broke; 2: wrong input; 130: stopped."""
    names = ", ".join(BENCHMARKS)
    if any(argument in ("-h", "--help") for argument in arguments):
        print(f"{USAGE}\nNAME is one of {names}")
        return 0
    if not arguments or arguments[0] not in BENCHMARKS:
        what = arguments[0] if arguments else "no name given"
        print(f"error: {what}: benchmarks are {names}", file=sys.stderr)
        return 2
    name = arguments[0]
    kept = False

    def keep(report: Report) -> None:
        nonlocal kept
        write_atomically(path, as_json(report))
        write_atomically(path.with_suffix(".md"), markdown_table(report).encode())
        kept = True

    try:
        given = split(arguments[1:])
        path = Path(given.pop("output_dir", OUTPUT_DIR)).expanduser() / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        say: Callable[[str], None] = lambda text: print(f"{time.monotonic() - start:7.1f} s  {text}", flush=True)  # noqa: E731
        report = BENCHMARKS[name](given, say, keep)
        keep(report)
    except (InputError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        print(f"stopped; {f'measured so far: {path}' if kept else 'nothing was written'}", file=sys.stderr)
        return 130
    print_report(report)
    print(f"written: {path}, and as Markdown {path.with_suffix('.md')}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
