"""The door: exit codes, one-line errors, a signal that leaves a training to go on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.train_head import main

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "training"))

from tiny_chat import prompts_file, tiny_chat  # noqa: E402


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    """A team's own folder with a tiny chat model."""
    source = tiny_chat(tmp_path / "model").source
    for group, name, lines in (
        ("target", "tiny", ["- base/target@_here_", "- /draft@drafts.ngram: ngram"]),
        ("workload", "talk", ["- base/workload@_here_"]),
    ):
        folder = tmp_path / "conf" / group
        folder.mkdir(parents=True)
        own = (
            f"source: {source}\ndtype: float32\n"
            if group == "target"
            else f"format: chat\npath: {prompts_file(tmp_path / 'talk.jsonl')}\noutput_tokens: 12\n"
        )
        defaults = "".join(f"  {line}\n" for line in [*lines, "- _self_"])
        (folder / f"{name}.yaml").write_text(f"# @package {group}s.{name}\ndefaults:\n{defaults}{own}")
    return [
        f"hydra.searchpath=[{tmp_path}/conf]",
        "target=[tiny]",
        "workload=[talk]",
        "device=cpu",
        f"output_dir={tmp_path}/runs",
        "collect.held_out=0.25",
        "collect.prompt_tokens=24",
        "collect.requests=48",
        "collect.slots=4",
        "collect.tokens=100",
        "head.vocabulary=48",
        "fit.batch_tokens=128",
        "fit.steps=9",
        "fit.looks=3",
    ]


def test_help_says_how_and_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    assert "jobs.train_head" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("minuets=1", "minuets"),
        ("workload=[poetry]", "poetry"),
        ("targets.smollm2.source=/no/such/model", "/no/such/model"),
        ("collect.text=[/no/such/text]", "/no/such/text"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    wrong: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([wrong, f"output_dir={tmp_path}"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert named in said
    assert "\n" not in said
    assert not (tmp_path / "heads").exists()


@pytest.mark.slow
def test_a_head_with_everything_beside_it_and_a_sweep_can_name_it(
    overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(overrides) == 0
    said = capfd.readouterr().out
    assert "held-out" in said
    assert "mlflow ui" in said
    folder = tmp_path / "runs" / "heads" / "tiny"
    assert {"config.json", "model.safetensors", "training.json", "learning_curve.html"} <= {
        p.name for p in folder.iterdir()
    }
    assert json.loads((folder / "training.json").read_text())["results"][0]["workload"] == "talk"
    assert (tmp_path / "runs" / "mlflow.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_and_the_same_command_goes_on(
    overrides: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "jobs.train_head", *overrides, "tracking=none"]
    slow = [*command, "fit.steps=100000", "fit.patience=1000000", "fit.epochs=1000000"]
    child = subprocess.Popen(
        slow, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    checkpoint = tmp_path / "runs" / "heads" / "tiny" / "work" / "checkpoint.pt"
    deadline = time.monotonic() + 300
    while not checkpoint.exists() and time.monotonic() < deadline:
        assert child.poll() is None, child.communicate()[1]
        time.sleep(0.2)
    child.send_signal(number)
    out, _ = child.communicate(timeout=300)
    assert child.returncode == 128 + number
    assert "the same command goes on" in out
    assert subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=300).returncode == 0
