"""How every door says that it cannot go on: one line, exit code 2."""

from __future__ import annotations

import sys

from pipeline.records.failure import InputError


def refuse(error: InputError | OSError) -> int:
    """Print what is wrong, naming the key or the file, and return the exit code."""
    said = str(error) if isinstance(error, InputError) else f"{error.filename or 'output'}: {error.strerror or error}"
    print(f"error: {said}", file=sys.stderr)
    return 2
