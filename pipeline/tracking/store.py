"""The truth of one sweep: an atomic JSON file per measurement, baseline, forecast and failure. All else is a view."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType

from pipeline.records.failure import PERMANENT, Failure, InputError
from pipeline.records.forecast import CellForecast
from pipeline.records.measurement import Baseline, Measurement
from pipeline.tracking.atomic import remove_leftovers, write_atomically
from pipeline.tracking.codec import Record, UnreadableError, decode, decode_failure, encode
from pipeline.tracking.lock import FolderLock

MEASUREMENTS = "measurements"
FAILURES = "failures"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_CONTENT_ID = re.compile(rb'"content_id"\s*:\s*"([^"\\]+)"')
_HEAD_BYTES = 4096


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class Store:
    """``folder`` holds ``measurements/<id>.json`` and ``failures/<id>.json``; loads are kept in memory.

    Opening it to write takes the sweep's lock, removes what a crash left half written, and forgets failures that
    another try may not meet again; only the permanent ones survive a resume. With ``read_only`` nothing on disk
    is touched, and a running sweep may be read. A file that cannot be read is moved aside to ``*.unreadable``, so
    that it is measured again, and reported to ``warn`` in one line.

    Raises InputError when another driver writes the sweep (naming its process) or the folder cannot be used.
    """

    def __init__(self, folder: Path, *, read_only: bool = False, warn: Callable[[str], None] = _to_stderr) -> None:
        self.folder = folder
        self._read_only = read_only
        self._warn = warn
        self._lock: FolderLock | None = None
        if not read_only:
            try:
                (folder / MEASUREMENTS).mkdir(parents=True, exist_ok=True)
                (folder / FAILURES).mkdir(exist_ok=True)
            except OSError as error:
                raise InputError(f"{folder}: the sweep cannot be written there: {error.strerror}") from None
            self._lock = FolderLock(folder, warn)
            remove_leftovers(folder / MEASUREMENTS)
            remove_leftovers(folder / FAILURES)
        self._records: dict[str, Record] = {}
        self._failures: dict[str, Failure] = {}
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def save(self, record: Record) -> None:
        """Write ``record`` before anything relies on it. A failure of the same id is thereby overcome."""
        write_atomically(self._path(MEASUREMENTS, record.id), encode(record))
        self._records[record.id] = record
        if self._failures.pop(record.id, None) is not None:
            self._path(FAILURES, record.id).unlink(missing_ok=True)

    def save_failure(self, failure_id: str, failure: Failure) -> None:
        """Write ``failure``; ``failure_id`` is mostly the id of the measurement it stands in for."""
        write_atomically(self._path(FAILURES, failure_id), encode(failure))
        self._failures[failure_id] = failure

    def has(self, record_id: str) -> bool:
        """Whether a record of that id is stored."""
        return record_id in self._records

    def get(self, record_id: str) -> Record:
        """The record of that id, traces included. Raises KeyError."""
        return self._records[record_id]

    def measurements(self) -> tuple[Measurement, ...]:
        """All measurements, of every kind, ordered by id."""
        return tuple(record for record in self._ordered() if isinstance(record, Measurement))

    def baselines(self) -> tuple[Baseline, ...]:
        """All baselines, ordered by id."""
        return tuple(record for record in self._ordered() if isinstance(record, Baseline))

    def forecasts(self) -> tuple[CellForecast, ...]:
        """All forecasts, ordered by id."""
        return tuple(record for record in self._ordered() if isinstance(record, CellForecast))

    def failures(self) -> dict[str, Failure]:
        """Failures by id."""
        return dict(sorted(self._failures.items()))

    def close(self) -> None:
        """Let another driver write the sweep."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ordered(self) -> Iterator[Record]:
        return (self._records[record_id] for record_id in sorted(self._records))

    def _path(self, room: str, record_id: str) -> Path:
        if self._read_only:
            raise RuntimeError(f"{self.folder} was opened to be read only")
        return _file(self.folder / room, record_id)

    def _load(self) -> None:
        for path in sorted((self.folder / MEASUREMENTS).glob("*.json")):
            try:
                record = decode(path.read_bytes())
                if record.id != path.stem:
                    raise UnreadableError(f"holds the record {record.id}")
                self._records[record.id] = record
            except FileNotFoundError:  # moved aside by the sweep's own driver while we only read
                continue
            except (UnreadableError, OSError) as error:
                self._set_aside(path, error)
        for path in sorted((self.folder / FAILURES).glob("*.json")):
            try:
                failure = decode_failure(path.read_bytes())
            except FileNotFoundError:
                continue
            except (UnreadableError, OSError) as error:
                self._set_aside(path, error)
                continue
            if self._read_only or failure.kind in PERMANENT:
                self._failures[path.stem] = failure
            else:
                path.unlink(missing_ok=True)

    def _set_aside(self, path: Path, error: Exception) -> None:
        reason = " ".join(str(error).split())
        if self._read_only:
            self._warn(f"{path}: unreadable, left out ({reason})")
            return
        aside = path.with_suffix(".unreadable")
        try:
            path.replace(aside)
        except OSError as failed:
            raise InputError(f"{path}: unreadable ({reason}) and cannot be moved aside: {failed.strerror}") from None
        self._warn(f"{path}: unreadable, moved aside to {aside.name} and measured again ({reason})")


def find_reusable(
    output_dir: Path, content_ids: Collection[str], but_not: str
) -> dict[str, tuple[Measurement, tuple[Baseline, ...]]]:
    """Measurements of earlier sweeps under ``output_dir`` by content id, each with its baselines.

    ``but_not`` names the sweep that asks; what it set aside to start afresh (``<sweep>.before-…``) is not taken
    either. Only the head of a file is read until its content id is one of those wanted. Of several measurements of one
    content the newest is taken. One whose own file or whose baselines cannot be read is passed over, and nothing is
    moved: the sweeps are not ours to write.
    """
    wanted = frozenset(content_ids) - {""}
    found: dict[str, tuple[Measurement, tuple[Baseline, ...]]] = {}
    if not wanted:
        return found
    for path in sorted(output_dir.glob(f"*/{MEASUREMENTS}/*.json")):
        sweep = path.parent.parent.name
        if sweep == but_not or sweep.startswith(f"{but_not}.before-"):
            continue
        content_id = _content_id(path)
        if content_id not in wanted:
            continue
        measurement = _read(path)
        if not isinstance(measurement, Measurement) or measurement.content_id != content_id:
            continue
        if measurement.metrics.raced_out:  # how much of it there is depends on its rivals
            continue
        rival = found.get(content_id)
        if rival is not None and rival[0].provenance.created >= measurement.provenance.created:
            continue
        beside = tuple(_read(_file(path.parent, baseline_id)) for baseline_id in measurement.baseline_ids)
        baselines = tuple(baseline for baseline in beside if isinstance(baseline, Baseline))
        if len(baselines) == len(measurement.baseline_ids):
            found[content_id] = (measurement, baselines)
    return found


def _content_id(path: Path) -> str:
    try:
        with path.open("rb") as file:
            match = _CONTENT_ID.search(file.read(_HEAD_BYTES))
    except OSError:
        return ""
    return match.group(1).decode(errors="replace") if match else ""


def _read(path: Path) -> Record | None:
    try:
        return decode(path.read_bytes())
    except (UnreadableError, OSError):
        return None


def _file(folder: Path, record_id: str) -> Path:
    if not _ID.fullmatch(record_id):
        raise ValueError(f"{record_id!r} cannot name a file")
    return folder / f"{record_id}.json"
