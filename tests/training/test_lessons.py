"""What is kept comes back as it was; batches hold every lesson once, each entry beside what it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records.failure import InputError
from pipeline.training.lessons import LessonStore, collate, epoch
from pipeline.training.recorder import Choices
from pipeline.training.teacher import Lesson


def lesson(length: int, start: int, seed: int = 0) -> Lesson:
    draw = torch.Generator().manual_seed(seed)
    places = length - 1 - start
    return Lesson(
        torch.randint(0, 99, (length,), generator=draw, dtype=torch.int32),
        start,
        torch.randn(length - 1, 6, generator=draw).to(torch.bfloat16),
        Choices(
            torch.randint(0, 99, (places, 4), generator=draw, dtype=torch.int32),
            torch.randn(places, 4, generator=draw),
        ),
    )


def assert_same(one: Lesson, other: Lesson) -> None:
    assert one.start == other.start
    for a, b in zip(
        (one.tokens, one.states, one.choices.ids, one.choices.logits),
        (other.tokens, other.states, other.choices.ids, other.choices.logits),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    store = LessonStore(tmp_path)
    batches = [[lesson(7, 2, 1), lesson(4, 0, 2)], [lesson(9, 5, 3)]]
    for number, batch in enumerate(batches):
        store.add("written", batch, 1.5, [f"prompt {number} ☃"])
    store.add("held-chat", [lesson(5, 1, 4)], 0.25)
    again = LessonStore(tmp_path)
    assert again.count("written") == 2
    assert again.count("held-chat") == 1
    for kept, made in zip(again.load("written"), [x for batch in batches for x in batch], strict=True):
        assert_same(kept, made)
    assert again.prompts("written") == ["prompt 0 ☃", "prompt 1 ☃"]
    assert again.seconds == 3.25
    assert again.bytes > 0


def test_what_a_crash_left_half_written_is_gone_and_a_spoilt_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "written-00000.safetensors.123.tmp").write_bytes(b"half")
    store = LessonStore(tmp_path)
    assert store.count("written") == 0
    assert not list(tmp_path.iterdir())
    (tmp_path / "written-00000.safetensors").write_bytes(b"spoilt")
    with pytest.raises(InputError, match=r"written-00000\.safetensors"):
        store.load("written")


@given(st.lists(st.integers(2, 40), min_size=1, max_size=30), st.integers(1, 120), st.integers(0, 5))
def test_an_epoch_holds_each_lesson_once_within_its_size(lengths: list[int], tokens: int, seed: int) -> None:
    made = [lesson(length, 0) for length in lengths]
    batches = epoch(made, tokens, seed)
    assert sorted(index for batch in batches for index in batch) == list(range(len(made)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= tokens
    assert batches == epoch(made, tokens, seed)


@given(st.lists(st.tuples(st.integers(3, 12), st.integers(0, 10)), min_size=1, max_size=5))
def test_each_entry_stands_beside_its_token_and_its_choices(shapes: list[tuple[int, int]]) -> None:
    made = [lesson(length, min(start, length - 3), seed) for seed, (length, start) in enumerate(shapes)]
    batch = collate(made)
    place = 0
    for row, each in enumerate(made):
        for entry in range(len(each.tokens) - 1):
            assert batch.tokens[row, entry] == each.tokens[entry + 1]
            assert torch.equal(batch.states[row, entry], each.states[entry])
        # choice j is about what follows token start + j, which entry start + j − 1 stands beside
        for j in range(len(each.choices.ids)):
            entry = each.start + j - 1
            if entry < 0:
                continue
            assert (int(batch.rows[place]), int(batch.columns[place])) == (row, entry)
            assert torch.equal(batch.choices.ids[place], each.choices.ids[j])
            assert torch.equal(batch.choices.logits[place], each.choices.logits[j])
            place += 1
    assert place == len(batch.rows) == len(batch.choices.ids)
