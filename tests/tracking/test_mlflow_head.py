"""A head's training in MLflow: every look and the result, written once, whatever happens on the way."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from pipeline.config import load_head_training
from pipeline.records.failure import InputError
from pipeline.records.head_training import Agreement, Drafted, HeadOnWorkload, HeadReport, HeadTraining, Look
from pipeline.tracking import mlflow_head
from pipeline.tracking.mlflow_head import HeadView


def settings_for(folder: Path, *overrides: str) -> HeadTraining:
    return load_head_training([f"output_dir={folder}", *overrides])


def look(step: int, agreement: float = 0.25) -> Look:
    return Look(
        step=step,
        spent_s=1.0 * step,
        progress=step / 10,
        learning_rate=1e-3,
        loss=3.0 - step / 10,
        watched_loss=3.5,
        watched_agreement=(agreement, agreement / 2),
    )


def report(settings: HeadTraining, looks: tuple[Look, ...]) -> HeadReport:
    share = Agreement(share=0.41, low=0.38, high=0.44)
    drafted = Drafted(gamma=3, acceptance_rate=0.4, emitted_per_verification=1.6, acceptance_by_position=(0.41, 0.2))
    result = HeadOnWorkload(
        workload="chat",
        prompts=("chat/a",),
        places=99,
        head=share,
        head_by_step=(0.41, 0.3),
        ngram=share,
        ahead=share,
        head_drafted=drafted,
        ngram_drafted=replace(drafted, acceptance_rate=None),
    )
    values: dict[str, Any] = {
        f.name: {"int": 1, "float": 0.5, "str": "x", "tuple[int, ...]": (1,), "tuple[str, ...]": ("a",)}.get(
            str(f.type)
        )
        for f in fields(HeadReport)
    }
    values |= {"target": settings.target, "looks": looks, "results": (result,), "coverage": 0.97}
    values |= {"collect": settings.collect, "head": settings.head, "fit": settings.fit}
    return HeadReport(**values)


def client(folder: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")


def the_run(folder: Path) -> Any:
    mlflow = client(folder)
    (experiment,) = [e for e in mlflow.search_experiments() if e.name == "train_head smollm2"]
    (run,) = mlflow.search_runs([experiment.experiment_id])
    return run


def test_looks_are_stepped_metrics_and_the_result_stands_beside_them(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    (tmp_path / "training.json").write_text("{}")
    view = HeadView.open(settings, "abc", pytest.fail)
    looks = (look(0), look(5, 0.3), look(10, 0.4))
    view.look(looks[:1])
    view.look(looks[:2])
    view.finish("FINISHED", report(settings, looks), [tmp_path / "training.json", tmp_path / "missing"])
    run = the_run(tmp_path)
    assert run.info.status == "FINISHED"
    assert run.data.params["fit_epochs"] == str(settings.fit.epochs)
    assert run.data.params["workloads"] == "chat"
    assert run.data.metrics["held_out_agreement.chat"] == 0.41
    assert run.data.metrics["head_emitted_per_verification.chat"] == 1.6
    assert "ngram_acceptance_rate.chat" not in run.data.metrics
    history = client(tmp_path).get_metric_history(run.info.run_id, "watched_agreement_1")
    assert [(point.step, point.value) for point in history] == [(0, 0.25), (5, 0.3), (10, 0.4)]
    assert [artifact.path for artifact in client(tmp_path).list_artifacts(run.info.run_id)] == ["training.json"]


def test_the_same_training_goes_on_in_the_same_run(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    first = HeadView.open(settings, "abc", pytest.fail)
    first.look((look(0), look(5)))
    first.finish("KILLED", None, ())
    assert the_run(tmp_path).info.status == "KILLED"
    second = HeadView.open(settings, "abc", pytest.fail)
    second.look((look(0), look(5), look(10)))
    second.finish("FINISHED", report(settings, (look(0), look(5), look(10))), ())
    run = the_run(tmp_path)
    assert run.info.status == "FINISHED"
    assert [p.step for p in client(tmp_path).get_metric_history(run.info.run_id, "loss")] == [0, 5, 10]


def test_what_mlflow_did_not_take_is_written_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    settings = settings_for(tmp_path)
    view = HeadView.open(settings, "abc", warned.append)

    def broken(*arguments: object, **named: object) -> None:
        raise RuntimeError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(mlflow_head.Connection, "write", broken)
        view.look((look(0),))
        view.look((look(0), look(5)))
    assert len(warned) == 1
    assert "database is locked" in warned[0]
    view.finish("FINISHED", report(settings, (look(0), look(5), look(10))), ())
    run = the_run(tmp_path)
    assert [p.step for p in client(tmp_path).get_metric_history(run.info.run_id, "loss")] == [0, 5, 10]


def test_a_server_that_is_not_there_costs_a_warning(tmp_path: Path) -> None:
    warned: list[str] = []
    settings = settings_for(tmp_path, "tracking.uri=http://user:secret@127.0.0.1:9")
    view = HeadView.open(settings, "abc", warned.append)
    view.look((look(0),))
    view.finish("FINISHED", report(settings, (look(0),)), ())
    assert warned
    assert not any("secret" in text for text in (*warned, view.ui_command))


def test_switched_off_it_does_nothing(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "tracking=none")
    view = HeadView.open(settings, "abc", pytest.fail)
    view.look((look(0),))
    view.finish("FINISHED", report(settings, (look(0),)), ())
    assert view.ui_command == ""
    assert not list(tmp_path.iterdir())


def test_an_address_that_mlflow_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tracking\.uri"):
        HeadView.open(settings_for(tmp_path, "tracking.uri=nonsense"), "abc", pytest.fail)
