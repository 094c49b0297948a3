"""How prompts are shared out, and how time is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_chat import prompts_file, tiny_settings

from pipeline.records.failure import InputError
from pipeline.records.head_training import CollectSettings
from pipeline.training.budget import MEASURING, Budget
from pipeline.training.collect import Writer, split
from pipeline.training.teacher import Teacher


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Teacher]:
    folder = tmp_path_factory.mktemp("model")
    return folder, Teacher(tiny_settings(folder).target, "float32", "cpu")


@pytest.mark.parametrize(("held_out", "watched"), [(0.25, 0.25), (0.5, 0.25), (0.5, 0.5), (0.13, 0.13)])
def test_every_prompt_is_for_one_thing_only(made: tuple[Path, Teacher], held_out: float, watched: float) -> None:
    folder, teacher = made
    settings = tiny_settings(folder, collect=CollectSettings(held_out=held_out, watched=watched))
    shared = split(settings.workloads[0], settings, teacher)
    parts = (shared.held_out, shared.watched, shared.learned)
    ids = [asked.id for part in parts for asked in part]
    assert len(set(ids)) == len(ids) == 8
    assert len(shared.held_out) == round(8 * held_out)
    again = split(settings.workloads[0], settings, teacher)
    assert again == shared


def test_a_share_without_a_prompt_is_refused(made: tuple[Path, Teacher]) -> None:
    folder, teacher = made
    settings = tiny_settings(folder, collect=CollectSettings(held_out=0.01))
    with pytest.raises(InputError, match=r"workloads\.talk.*collect\.held_out"):
        split(settings.workloads[0], settings, teacher)


def test_a_prompt_that_is_too_long_and_one_given_twice_are_left_out(made: tuple[Path, Teacher], tmp_path: Path) -> None:
    folder, teacher = made
    path = prompts_file(tmp_path / "p.jsonl", 8)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[0].replace('"p0"', '"again"')]) + "\n")
    settings = tiny_settings(folder)
    workload = dataclasses.replace(settings.workloads[0], path=str(path))
    shared = split(workload, settings, teacher)
    assert shared.left_out == 1
    with pytest.raises(InputError, match="0 usable prompts"):
        split(dataclasses.replace(workload, max_prompt_tokens=3), settings, teacher)


def test_a_batch_of_written_prompts_depends_on_its_number_alone(made: tuple[Path, Teacher]) -> None:
    folder, teacher = made
    settings = tiny_settings(folder)
    splits = [split(settings.workloads[0], settings, teacher)]
    one, other = (Writer(settings, teacher, splits, (1,)) for _ in range(2))
    first = one.prompts(0, lambda rows: None)
    second = one.prompts(1, lambda rows: None)
    assert first
    assert second
    other.known(first)
    assert other.prompts(1, lambda rows: None) == second
    held_out = {asked.said for asked in (*splits[0].held_out, *splits[0].watched)}
    assert not held_out & {*first, *second}


@given(
    minutes=st.floats(0.1, 100),
    epochs=st.floats(0.5, 20),
    spent=st.floats(0, 1),
    entries=st.integers(0, 10**6),
    rate=st.floats(1, 10**5),
)
def test_collecting_ends_while_there_is_time_to_learn_from_it(
    minutes: float, epochs: float, spent: float, entries: int, rate: float
) -> None:
    budget = Budget(60 * minutes, epochs)
    spent_s = spent * budget.total_s
    if not budget.is_enough(spent_s, entries, rate, batch_s=0.0):
        assert budget.learning_s(spent_s) >= epochs * entries / rate - 1e-6
    assert budget.is_enough(budget.total_s, entries, rate, 0.0)
    assert budget.learning_s(spent_s) + min(spent_s, budget.total_s * (0.8 - MEASURING)) <= budget.total_s + 1e-6
