"""``python -m jobs.benchmark NAME [key=value ...]``: a table, and ``runs/benchmarks/NAME.{json,md}``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jobs.refusal import refuse
from pipeline.benchmarks.catalog import BENCHMARKS
from pipeline.benchmarks.options import split
from pipeline.benchmarks.rows import as_json
from pipeline.benchmarks.table import markdown_table, report_table
from pipeline.records.failure import InputError
from pipeline.tracking.atomic import write_atomically

OUTPUT_DIR = "runs/benchmarks"
USAGE = """usage: python -m jobs.benchmark NAME [KEY=VALUE ...]

Measures what the README claims, side by side with peers, prints a table and writes NAME.json, NAME.md.
  decoding tokens=64 repeats=3 spec_bench=spec_bench.jsonl source=MODEL threads=2
  lossless samples=20000 processes=2
  output_dir=runs/benchmarks"""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: measured, whether or not what was wanted holds; 2: wrong input; 130: stopped."""
    names = ", ".join(BENCHMARKS)
    if any(argument in ("-h", "--help") for argument in arguments):
        print(f"{USAGE}\nNAME is one of {names}")
        return 0
    if not arguments or arguments[0] not in BENCHMARKS:
        what = arguments[0] if arguments else "no name given"
        print(f"error: {what}: benchmarks are {names}", file=sys.stderr)
        return 2
    name = arguments[0]
    try:
        given = split(arguments[1:])
        path = Path(given.pop("output_dir", OUTPUT_DIR)).expanduser() / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        report = BENCHMARKS[name](given, lambda text: print(f"{time.monotonic() - start:7.1f} s  {text}", flush=True))
        write_atomically(path, as_json(report))
        write_atomically(path.with_suffix(".md"), markdown_table(report).encode())
    except (InputError, OSError) as error:
        return refuse(error)
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    Console(highlight=False).print(report_table(report))
    print(f"written: {path}, and as Markdown {path.with_suffix('.md')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
