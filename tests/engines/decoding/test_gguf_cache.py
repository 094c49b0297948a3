"""A GGUF file is unpacked once, wholly or not at all, however many processes ask."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from pipeline.engines.decoding.gguf_cache import build_once, cache_folder, converted
from pipeline.records.failure import InputError

FORK = multiprocessing.get_context("fork")


def slow_build(folder: Path) -> None:
    (folder / "first").write_text("half")
    time.sleep(0.3)
    (folder / "second").write_text(str(os.getpid()))


def endless_build(folder: Path) -> None:
    (folder / "first").write_text("half")
    time.sleep(60)


def test_processes_that_ask_at_once_make_one_copy(tmp_path: Path) -> None:
    final = tmp_path / "models" / "m"
    workers = [FORK.Process(target=build_once, args=(final, slow_build)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert sorted(path.name for path in final.parent.iterdir()) == ["m", "m.lock"]
    writer = int((final / "second").read_text())
    assert writer in [worker.pid for worker in workers]
    build_once(final, endless_build)  # nothing to do any more


def test_a_killed_conversion_leaves_nothing_half_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    final = tmp_path / "m"
    worker = FORK.Process(target=build_once, args=(final, endless_build))
    worker.start()
    while not list(tmp_path.glob(".m.*/first")):
        time.sleep(0.01)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert not final.exists()
    assert build_once(final, slow_build) == final
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.lock"]
    assert sorted(path.name for path in final.iterdir()) == ["first", "second"]


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "first").write_text("half")
        raise RuntimeError("out of disk")

    with pytest.raises(RuntimeError, match="out of disk"):
        build_once(tmp_path / "m", fails)
    assert [path.name for path in tmp_path.iterdir()] == ["m.lock"]


def test_the_cache_lies_where_the_user_keeps_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "speculative-decoding-pipeline" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "speculative-decoding-pipeline" / "models"


def test_a_file_that_is_no_gguf_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model" * 100)
    with pytest.raises(InputError, match=r"^targets\.x\.source: .*broken\.gguf cannot be read") as caught:
        converted(broken, torch.float32, key="targets.x.source")
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match="XDG_CACHE_HOME chooses another place"):
        converted(tmp_path / "m.gguf", torch.float32, key="targets.x.source")
