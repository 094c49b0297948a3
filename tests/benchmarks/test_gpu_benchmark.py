"""The GPU benchmark on a CPU: all of it runs, on a bare machine, and loses nothing when something ends it early."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from scipy import stats

from jobs.benchmark import main
from pipeline.benchmarks.exact import chi_square_p
from pipeline.benchmarks.gpu.budget import Block, run_blocks
from pipeline.benchmarks.gpu.decoder import Decoder, RandomProposer, requests, took
from pipeline.benchmarks.gpu.distribution import distributions
from pipeline.benchmarks.gpu.shapes import build, bytes_of_a_token, bytes_read, scale
from pipeline.benchmarks.gpu.speed import crossover
from pipeline.benchmarks.rows import Report, Row, alone
from pipeline.benchmarks.table import plain_table

CPU = torch.device("cpu")
HEAVY = ("ray", "optuna", "mlflow", "hydra", "omegaconf", "pydantic")
ABSENT = (*HEAVY, "rich", "plotly", "pyarrow", "accelerate", "gguf", "scipy", "sklearn", "hypothesis", "pytest")
BARE = f"""
import importlib.machinery, sys
real = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {ABSENT!r} else real(name, path, target)
importlib.machinery.PathFinder.find_spec = find_spec
"""
"""A machine where these are not installed: they are found neither by an import nor by one who asks whether they are."""


def bare(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BARE + code], check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("gpu")
    code = f"""
from jobs.benchmark import main
code = main(["gpu", "device=cpu", "scale=tiny", "output_dir={folder}"])
loaded = sorted(set({ABSENT!r}) & set(sys.modules))
sys.exit(f"loaded: {{loaded}}" if loaded else code)
"""
    return bare(code), folder


def test_it_runs_on_a_bare_machine(tiny_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, folder = tiny_run
    assert done.returncode == 0, done.stderr
    written = json.loads((folder / "gpu.json").read_text())
    assert written["failures"] == []
    assert not [note for note in written["notes"] if note.startswith("left out")]
    metrics = {row["metric"] for row in written["rows"]}
    assert {
        "copy_bandwidth", "tau0_c1", "graphs_c1", "plain_c2", "verify_g4_c2", "draft_step_c1", "text_fp32_same",
        "text_low_precision_ngram", "chi_square_draft_model", "chi_square_mutant", "mixture_tau0_c1",
    } <= metrics  # fmt: skip
    assert len(metrics) == len(written["rows"])
    assert {"accelerator", "torch", "transformers", "driver", "device"} <= set(written["conditions"])
    assert "| tau0_c1 |" in (folder / "gpu.md").read_text()
    assert "tau0_c1" in done.stdout


def test_texts_and_distribution_hold_even_there(
    tiny_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, folder = tiny_run
    rows = {row["metric"]: row for row in json.loads((folder / "gpu.json").read_text())["rows"]}
    assert all(row["holds"] for metric, row in rows.items() if metric.startswith("text_"))
    assert rows["chi_square_draft_model"]["holds"]
    assert rows["accepted_fp32_same"]["ours"] > 0.9


@pytest.mark.slow
def test_enough_samples_tell_the_engine_as_it_is_from_a_wrong_one() -> None:
    found = {row.metric: row.holds for row in distributions(Decoder(CPU), 600)}
    assert found == {"chi_square_draft_model": True, "chi_square_top_p": True, "chi_square_mutant": True}


def test_the_whole_engine_is_imported_on_a_bare_machine() -> None:
    done = bare(
        "import pipeline.engines.decoding.engine, pipeline.measurement.round, pipeline.measurement.pool\n"
        "import pipeline.engines.decoding.heads.loading, pipeline.records.measurement\n"
        f"sys.exit(' '.join(set({ABSENT!r}) & set(sys.modules)))"
    )
    assert done.stderr.strip() == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["gpu", f"output_dir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "device=cuda" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argument", ["scale=huge", "device=tpu9000", "minutes=0", "hours=1"])
def test_wrong_input_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, argument: str) -> None:
    given = {"device": "cpu", "scale": "tiny"} | dict([argument.split("=")])
    assert main(["gpu", f"output_dir={tmp_path}", *(f"{k}={v}" for k, v in given.items())]) == 2
    assert argument.split("=")[0] in capsys.readouterr().err


def blocks_of(now: list[float], *seconds: float) -> list[Block]:
    def rows(index: int) -> Iterator[Row]:
        for part in ("a", "b"):
            now[0] += seconds[index] / 2
            yield alone(f"{index}{part}", "ms", "less", [1.0])

    return [Block(f"block {i}", s * 0.8, lambda i=i: rows(i)) for i, s in enumerate(seconds)]  # type: ignore[misc]


def test_what_does_not_fit_is_left_out_and_what_fits_is_not() -> None:
    now, kept = [0.0], list[int]()
    progress = run_blocks(
        blocks_of(now, 40, 100, 10), 60, lambda done: kept.append(len(done.rows)), lambda _: None, lambda: now[0]
    )
    assert [row.metric for row in progress.rows] == ["0a", "0b", "2a", "2b"]
    assert progress.left_out == ["block 1: needs 80 s, 20 s were left"]
    assert kept == [1, 2, 2, 3, 4]


def test_a_block_that_takes_longer_than_thought_ends_with_the_time() -> None:
    now = [0.0]
    progress = run_blocks(blocks_of(now, 70), 58, lambda _: None, lambda _: None, lambda: now[0] * 2)
    assert [row.metric for row in progress.rows] == ["0a"]
    assert progress.left_out == ["block 0: what follows 0a, the time was over"]


def test_a_block_that_breaks_stops_no_other_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks() -> Iterator[Row]:
        yield alone("before", "ms", "less", [1.0])
        raise RuntimeError("no such kernel\nand more")

    fine = blocks_of([0.0], 1)[0]
    progress = run_blocks([Block("odd", 0, breaks), fine], 60, lambda _: None, lambda _: None, lambda: 0.0)
    assert [row.metric for row in progress.rows] == ["before", "0a", "0b"]
    assert progress.broken == ["odd: RuntimeError: no such kernel"]
    assert "Traceback" in capsys.readouterr().err


def test_what_was_measured_is_on_disk_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from pipeline.benchmarks.gpu import run

    def stopped(self: object, *args: object) -> Iterator[Row]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(run._Bench, "_floor", stopped)
    assert main(["gpu", "device=cpu", "scale=tiny", f"output_dir={tmp_path}"]) == 130
    assert "measured so far" in capsys.readouterr().err
    assert [row["metric"] for row in json.loads((tmp_path / "gpu.json").read_text())["rows"]] == ["copy_bandwidth"]


def test_something_broken_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from pipeline.benchmarks.gpu import run

    block = [Block("odd", 0, lambda: iter([1 / 0]))]  # type: ignore[list-item]
    monkeypatch.setattr(run._Bench, "blocks", lambda self: block)
    assert main(["gpu", "device=cpu", "scale=tiny", f"output_dir={tmp_path}"]) == 1
    assert "failed: odd: ZeroDivisionError: division by zero" in capsys.readouterr().out


def test_the_crossover_is_the_least_concurrency_where_a_free_draft_loses() -> None:
    """E(.7, 4) = 2.77."""
    row, meaning = crossover({(1, 4): 1.1, (8, 4): 1.9, (32, 4): 2.78, (128, 4): 4.0, (8, 8): 9.0})
    assert row is not None
    assert (row.metric, row.ours) == ("crossover_g4", 32)
    assert "2.77" in meaning
    row, meaning = crossover({(1, 4): 1.1, (8, 4): 2.77})
    assert row is None
    assert "none" in meaning


def test_a_plain_step_reads_all_weights_but_the_embeddings_and_the_experts_that_nobody_visits() -> None:
    tiny = scale("tiny")
    dense = build(tiny.target, torch.float32, CPU)
    table = dense.get_input_embeddings().weight.numel() * 4
    total = sum(p.numel() for p in dense.parameters()) * 4
    assert bytes_read(dense) == total - table
    assert bytes_of_a_token(dense) == 2 * 3 * 2 * 8 * 4
    mixture = build(tiny.mixture, torch.float32, CPU)
    experts = 2 * 4 * (3 * 16 * 32) * 4  # layers, experts, their three matrices
    total = sum(p.numel() for p in mixture.parameters()) * 4
    assert bytes_read(mixture) == total - table - experts / 2


def test_full_shapes_have_the_parameters_of_the_models_they_are_named_after() -> None:
    full = scale("full")
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
            for config in (full.target, full.draft, full.mixture)
        ]
    assert [round(count / 1e9, 2) for count in counts] == [8.19, 0.6, 30.53]


def test_iterations_are_those_of_full_slots_after_the_first_few() -> None:
    tiny, decoder = scale("tiny"), Decoder(CPU)
    target = decoder.cached(build(tiny.target, torch.float32, CPU))
    trace = decoder.run(target, requests(2, 10, 20, 256), 2, 40, RandomProposer(256, CPU), 3)
    measured = took(trace, 2, 4)
    assert 0 < measured.verify < measured.tau
    assert measured.draft < measured.verify
    with pytest.raises(RuntimeError, match="no iteration over 3 slots"):
        took(trace, 3, 4)


@pytest.mark.parametrize(("statistic", "degrees"), [(0.0, 3), (3.84, 1), (90.0, 60), (900.0, 400)])
def test_the_p_of_a_chi_square_is_that_of_scipy(statistic: float, degrees: int) -> None:
    assert chi_square_p(statistic, degrees) == pytest.approx(float(stats.chi2.sf(statistic, degrees)), rel=1e-9)


def test_the_plain_table_has_a_line_a_row_and_what_was_left_out_below() -> None:
    names = ("accelerator", "threads", "cpus", "dtype", "python", "torch", "transformers", "load_before", "load_after")
    where = dict.fromkeys((*names, "created"), "x")
    report = Report(
        benchmark="gpu", settings={}, conditions=where, rows=(alone("a", "ms", "less", [1.0]),), notes=("left out: b",)
    )
    lines = plain_table(report).splitlines()
    assert [line.split() for line in lines[:2]] == [["metric", "ours"], ["a", "1", "ms"]]
    assert lines[-1] == "left out: b"
