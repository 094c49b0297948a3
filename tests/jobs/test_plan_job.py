"""The door of a plan: exit codes, one-line errors, and that nothing heavy is loaded for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.plan import main

ROOT = Path(__file__).parents[2]


def test_a_plan_needs_neither_models_nor_hub_nor_cluster_and_writes_nothing(tmp_path):
    code = (
        "import sys; from jobs.plan import main\n"
        "code = main(['target=[qwen3_8b,llama31_8b,qwen3_30b_a3b]', 'plan.device=h100', f'output_dir={sys.argv[1]}'])\n"
        "heavy = {'torch', 'transformers', 'ray', 'optuna', 'mlflow', 'scipy', 'pandas', 'huggingface_hub'}\n"
        "sys.exit(code or ' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "budget.worker_hours=" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "named"), [("plan.devise=h100", "plan.devise"), ("plan.device=h300", "h100"), ("plan.allowance=0", "1")]
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, wrong, named):
    assert main([wrong]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert named in error
    assert error.count("\n") == 1


def test_help_says_what_it_takes(capsys):
    assert main(["--help"]) == 0
    assert "cluster.accelerator_type" in capsys.readouterr().out
