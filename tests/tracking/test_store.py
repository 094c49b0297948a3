"""The store keeps what was measured through crashes, and lets one driver write at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.records.failure import Failure, InputError
from pipeline.tracking import store as store_module
from pipeline.tracking.atomic import write_atomically
from pipeline.tracking.lock import is_held
from pipeline.tracking.store import Store, find_reusable


def reopen(folder: Path, lines: list[str] | None = None) -> Store:
    return Store(folder, warn=(lines if lines is not None else []).append)


def failure(kind: str, cell) -> Failure:
    return Failure(cell=cell, candidate=None, kind=kind, message="no room")


def test_what_was_saved_is_there_after_a_restart(tmp_path, make_measurement, make_baseline, block) -> None:
    measurement, baseline = make_measurement("m1", trace_blocks=(block,)), make_baseline("b1")
    with Store(tmp_path) as store:
        store.save(measurement)
        store.save(baseline)
    with Store(tmp_path) as store:
        assert store.measurements() == (measurement,)
        assert store.baselines() == (baseline,)
        assert store.get("m1") == measurement
        assert store.has("b1")
        assert not store.has("m2")


def test_a_kill_between_writing_and_renaming_leaves_the_old_record(tmp_path, make_measurement) -> None:
    """The process dies by SIGKILL in the middle, as a job stop does."""
    with Store(tmp_path) as store:
        store.save(make_measurement("m1", speedup=1.1))
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from pipeline.tracking import atomic\n"
        "atomic._flush = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        "atomic.write_atomically(Path(sys.argv[1]), b'half a rec')\n"
    )
    target = tmp_path / "measurements" / "m1.json"
    died = subprocess.run([sys.executable, "-c", program, str(target)], cwd=Path(__file__).parents[2])
    assert died.returncode == -9
    assert len(list(target.parent.glob("*.tmp"))) == 1
    lines: list[str] = []
    with reopen(tmp_path, lines) as store:
        assert [m.metrics.speedup for m in store.measurements()] == [1.1]
    assert not list(target.parent.glob("*.tmp"))
    assert lines == []


def test_a_full_disk_leaves_neither_a_record_nor_a_temporary_file(tmp_path, make_measurement, monkeypatch) -> None:
    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device")

    with Store(tmp_path) as store:
        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            store.save(make_measurement("m1"))
        assert not store.has("m1")
        assert list((tmp_path / "measurements").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\x00\xff\xfe", b'{"kind": "search"}', b"[]", b"null"])
def test_an_unreadable_file_is_moved_aside_and_measured_again(tmp_path, make_measurement, content) -> None:
    with Store(tmp_path) as store:
        store.save(make_measurement("m1"))
        store.save(make_measurement("m2"))
    (tmp_path / "measurements" / "m1.json").write_bytes(content)
    lines: list[str] = []
    with reopen(tmp_path, lines) as store:
        assert not store.has("m1")
        assert store.has("m2")
        store.save(make_measurement("m1"))
    assert len(lines) == 1
    assert "m1.json" in lines[0]
    assert "\n" not in lines[0]
    assert (tmp_path / "measurements" / "m1.unreadable").read_bytes() == content
    with reopen(tmp_path, lines) as store:
        assert store.has("m1")
    assert len(lines) == 1


def test_a_file_under_another_records_name_is_not_that_record(tmp_path, make_measurement) -> None:
    with Store(tmp_path) as store:
        store.save(make_measurement("m1"))
    (tmp_path / "measurements" / "m1.json").rename(tmp_path / "measurements" / "m2.json")
    lines: list[str] = []
    with reopen(tmp_path, lines) as store:
        assert not store.has("m1")
        assert not store.has("m2")
    assert "holds the record m1" in lines[0]


def test_an_unreadable_failure_is_no_crash(tmp_path) -> None:
    Store(tmp_path).close()
    (tmp_path / "failures" / "f1.json").write_text("{")
    lines: list[str] = []
    with reopen(tmp_path, lines) as store:
        assert store.failures() == {}
    assert len(lines) == 1


def test_only_permanent_failures_survive_a_resume(tmp_path, make_measurement) -> None:
    cell = make_measurement().cell
    with Store(tmp_path) as store:
        for kind in ("out_of_memory", "refused", "gate", "timeout", "worker_died", "error"):
            store.save_failure(kind, failure(kind, cell))
        assert len(store.failures()) == 6
    with Store(tmp_path) as store:
        assert sorted(store.failures()) == ["gate", "out_of_memory", "refused"]
    assert sorted(path.stem for path in (tmp_path / "failures").iterdir()) == ["gate", "out_of_memory", "refused"]


def test_a_measurement_overcomes_the_failure_of_its_id(tmp_path, make_measurement) -> None:
    measurement = make_measurement("m1")
    with Store(tmp_path) as store:
        store.save_failure("m1", failure("gate", measurement.cell))
        store.save(measurement)
        assert store.failures() == {}
    with Store(tmp_path) as store:
        assert store.failures() == {}


def test_a_second_driver_is_told_who_writes_the_sweep(tmp_path) -> None:
    with (
        Store(tmp_path),
        pytest.raises(InputError, match=rf"process {os.getpid()} on .* is writing this sweep"),
    ):
        Store(tmp_path)
    Store(tmp_path).close()


def test_the_lock_of_a_driver_that_was_killed_is_free(tmp_path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from pipeline.tracking.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        assert is_held(tmp_path)
        with pytest.raises(InputError, match=f"process {other.pid} on"):
            Store(tmp_path)
        other.kill()
        other.wait()
    assert not is_held(tmp_path)
    Store(tmp_path).close()


def test_a_running_sweep_can_be_read_and_is_left_as_it_is(tmp_path, make_measurement) -> None:
    with Store(tmp_path) as writer:
        writer.save(make_measurement("m1"))
        writer.save_failure("f1", failure("timeout", make_measurement().cell))
        half = tmp_path / "measurements" / "m2.json.1.tmp"
        half.write_text("{")
        (tmp_path / "measurements" / "m3.json").write_text("{")
        lines: list[str] = []
        reader = Store(tmp_path, read_only=True, warn=lines.append)
        assert [m.id for m in reader.measurements()] == ["m1"]
        assert list(reader.failures()) == ["f1"]
        assert half.exists()
        assert (tmp_path / "measurements" / "m3.json").exists()
        assert "m3.json" in lines[0]
        with pytest.raises(RuntimeError, match="read only"):
            reader.save(make_measurement("m4"))


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match="taken"):
        Store(tmp_path / "taken")


@pytest.mark.parametrize("record_id", ["../m1", "", "a/b", ".hidden", "m\n1"])
def test_an_id_cannot_lead_out_of_the_folder(tmp_path, make_measurement, record_id) -> None:
    with Store(tmp_path) as store, pytest.raises(ValueError, match="cannot name a file"):
        store.save(make_measurement(record_id))


def test_a_measurement_of_an_earlier_sweep_is_found_with_its_baselines(
    tmp_path, make_measurement, make_baseline
) -> None:
    measurement, baseline = make_measurement("m1", content_id="same", baseline_ids=("b1",)), make_baseline("b1")
    with Store(tmp_path / "earlier") as store:
        store.save(measurement)
        store.save(baseline)
        store.save(make_measurement("m2", content_id="other"))
    assert find_reusable(tmp_path, {"same", "missing"}, "now") == {"same": (measurement, (baseline,))}
    assert find_reusable(tmp_path, {"same"}, "earlier") == {}
    (tmp_path / "earlier").rename(tmp_path / "earlier.before-20260101T000000Z")
    assert find_reusable(tmp_path, {"same"}, "earlier") == {}
    assert find_reusable(tmp_path / "nowhere", {"same"}, "now") == {}


def test_without_its_baseline_or_whole_file_nothing_is_reused(tmp_path, make_measurement) -> None:
    with Store(tmp_path / "earlier") as store:
        store.save(make_measurement("m1", content_id="lost", baseline_ids=("b1",)))
        store.save(make_measurement("m2", content_id="cut"))
    path = tmp_path / "earlier" / "measurements" / "m2.json"
    path.write_bytes(path.read_bytes()[:-20])
    assert find_reusable(tmp_path, {"lost", "cut"}, "now") == {}
    assert path.exists()


def test_records_with_no_content_id_are_never_taken_for_one_another(tmp_path, make_measurement) -> None:
    with Store(tmp_path / "earlier") as store:
        store.save(make_measurement("m1", content_id=""))
    assert find_reusable(tmp_path, {""}, "now") == {}


def test_only_files_with_a_wanted_content_are_read_whole(tmp_path, make_measurement, monkeypatch) -> None:
    with Store(tmp_path / "earlier") as store:
        for i in range(20):
            store.save(make_measurement(f"m{i}", content_id=f"c{i}"))
    read: list[bytes] = []
    decode = store_module.decode
    monkeypatch.setattr(store_module, "decode", lambda content: read.append(content) or decode(content))
    assert list(find_reusable(tmp_path, {"c7"}, "now")) == ["c7"]
    assert len(read) == 1


def test_the_newest_of_equal_measurements_is_taken(tmp_path, make_measurement) -> None:
    for sweep, created in (("a", "2026-01-02"), ("b", "2026-01-03"), ("c", "2026-01-01")):
        one = make_measurement(sweep, content_id="same")
        with Store(tmp_path / sweep) as store:
            store.save(replace(one, provenance=replace(one.provenance, created=created)))
    assert find_reusable(tmp_path, {"same"}, "now")["same"][0].id == "b"


def test_an_atomic_write_replaces_the_whole_file(tmp_path) -> None:
    write_atomically(tmp_path / "new" / "file", b"long content")
    write_atomically(tmp_path / "new" / "file", b"short")
    assert (tmp_path / "new" / "file").read_bytes() == b"short"
    assert len(list((tmp_path / "new").iterdir())) == 1
