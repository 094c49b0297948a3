"""The whole job on tiny models: a head that the engine loads, made once, and gone on with after any end."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_chat import FAMILIES, tiny_settings

from pipeline.engines.contract import Limits, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.failure import InputError
from pipeline.records.head_training import FitSettings
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Eagle3
from pipeline.training import job
from pipeline.training.collect import GREEDY, requests_for, split
from pipeline.training.fit import Fit
from pipeline.training.job import Outcome, read_report, train_head
from pipeline.training.lessons import LessonStore
from pipeline.training.teacher import Teacher


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.said.append(f"warning: {text}")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_comes_out_that_the_engine_loads(tmp_path: Path, family: str) -> None:
    settings = tiny_settings(tmp_path, family)
    outcome = train_head(settings, Lines(), lambda: False)
    assert outcome.report is not None
    assert outcome.report == read_report(outcome.folder)
    (result,) = outcome.report.results
    assert len(result.prompts) == 2
    assert not set(result.prompts) & set(outcome.report.watched)
    engine = DecodingEngine(EngineSettings(device="cpu"))
    engine.open(settings.target, [Eagle3(name="head", source=str(outcome.folder))], Limits(concurrency=1, max_gamma=2))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "model.safetensors"))


def assert_same_head(one: Path, other: Path) -> None:
    left, right = tensors(one), tensors(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name])


class After:
    """Says stop once it was asked so often."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_the_same_command_again_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings(tmp_path)
    first = train_head(settings, Lines(), lambda: False)
    monkeypatch.setattr(job, "Teacher", None)  # nothing is loaded
    assert train_head(settings, Lines(), lambda: False).report == first.report


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A training that nothing interrupted."""
    return train_head(tiny_settings(tmp_path_factory.mktemp("whole")), Lines(), lambda: False)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(3, id="first answers", marks=pytest.mark.slow),
        pytest.param(25, id="prompts", marks=pytest.mark.slow),
        pytest.param(80, id="later"),
        pytest.param(115, id="learning", marks=pytest.mark.slow),
    ],
)
def test_a_signal_at_any_time_leaves_what_the_same_command_goes_on_with(
    tmp_path: Path, whole: Outcome, asked: int
) -> None:
    settings = tiny_settings(tmp_path)
    stopped = train_head(settings, Lines(), After(asked))
    assert stopped.report is None
    made = sorted((stopped.folder / "work" / "lessons").iterdir())
    times = [path.stat().st_mtime_ns for path in made]
    done = train_head(settings, Lines(), lambda: False)
    assert [path.stat().st_mtime_ns for path in made] == times  # nothing is collected twice
    assert whole.report is not None
    assert done.report is not None
    assert done.report.learned_places == whole.report.learned_places
    assert_same_head(done.folder, whole.folder)


@pytest.mark.parametrize("where", ["collecting", "learning"])
def test_a_crash_leaves_what_the_same_command_goes_on_with(
    tmp_path: Path, whole: Outcome, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny_settings(tmp_path)
    owner, name, good = (LessonStore, "add", 3) if where == "collecting" else (Fit, "_step", 5)
    real, calls = getattr(owner, name), 0

    def breaks(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls > good:
            raise OSError("the disk is full")
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, breaks)
    with pytest.raises(OSError, match="full"):
        train_head(settings, Lines(), lambda: False)
    monkeypatch.setattr(owner, name, real)
    assert_same_head(train_head(settings, Lines(), lambda: False).folder, whole.folder)


def test_other_settings_do_not_mix_with_what_was_collected(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path)
    train_head(settings, Lines(), lambda: False)
    other = dataclasses.replace(settings, seed=1)
    with pytest.raises(InputError, match="fresh=true sets it aside"):
        train_head(other, Lines(), lambda: False)
    outcome = train_head(dataclasses.replace(other, fresh=True), Lines(), lambda: False)
    assert outcome.report is not None
    assert list(outcome.folder.glob("work.before-*"))


def test_learning_anew_takes_what_is_collected(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path)
    first = train_head(settings, Lines(), lambda: False)
    lessons = first.folder / "work" / "lessons"
    made = [path.stat().st_mtime_ns for path in lessons.iterdir()]
    slower = dataclasses.replace(settings.fit, learning_rate=1e-4)
    after = train_head(dataclasses.replace(settings, fit=slower), Lines(), lambda: False).report
    assert [path.stat().st_mtime_ns for path in lessons.iterdir()] == made
    assert first.report is not None
    assert after is not None
    assert first.report.identity != after.identity


def test_what_the_report_counts_as_agreement_is_what_the_engine_accepts(tmp_path: Path) -> None:
    """At γ = 1 from every place: the engine's first position, forced to each place, is the reported share."""
    settings = tiny_settings(tmp_path, fit=FitSettings(draft_steps=1, steps=60, looks=3, batch_tokens=128))
    outcome = train_head(settings, Lines(), lambda: False)
    assert outcome.report is not None
    (result,) = outcome.report.results
    head = Eagle3(name="head", source=str(outcome.folder))
    engine = DecodingEngine(EngineSettings(device="cpu"))
    engine.open(settings.target, [head], Limits(concurrency=1, max_gamma=1))
    teacher = Teacher(settings.target, "float32", "cpu")
    asked = split(settings.workloads[0], settings, teacher).held_out
    right = places = 0
    for text in teacher.teach(requests_for(asked, 12, 0), GREEDY, (1,), 2, lambda rows: None):
        tokens = text.tokens.tolist()
        for end in range(text.start + 1, len(tokens) - 1):  # this much is the prompt; one token, then one proposal
            request = Request(
                request_id="x", prompt_id="x", tokens=tuple(tokens[:end]), max_new_tokens=3, seed=0, ignore_eos=True
            )
            (row,) = engine.run([request], GREEDY, head, Schedule.constant(1)).requests
            assert row.output[0] == tokens[end]
            right += row.accepted[0]
            places += 1
    assert places == result.places
    assert right / places == pytest.approx(result.head.share)


@pytest.mark.slow
def test_a_head_learns_a_text_that_repeats_itself(tmp_path: Path) -> None:
    settings = tiny_settings(tmp_path, fit=FitSettings(epochs=100, draft_steps=2, steps=300, looks=5, batch_tokens=512))
    report = train_head(settings, Lines(), lambda: False).report
    assert report is not None
    assert report.looks[-1].loss < report.looks[0].loss
