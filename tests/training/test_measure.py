"""Agreement counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records.target import Ngram
from pipeline.training.divergence import Vocabulary
from pipeline.training.measure import agreement, right_of_head, right_of_ngram
from pipeline.training.recorder import Choices
from pipeline.training.teacher import Lesson


def lesson(tokens: list[int], start: int) -> Lesson:
    """Greedy: what the target thought likeliest is what follows."""
    following = torch.tensor(tokens[start + 1 :], dtype=torch.int32)[:, None]
    ids = torch.cat((following, following + 1), dim=1)
    logits = torch.tensor([[2.0, 1.0]]).expand(len(ids), 2)
    text = torch.tensor(tokens, dtype=torch.int32)
    return Lesson(text, start, torch.zeros(len(tokens) - 1, 2, dtype=torch.bfloat16), Choices(ids, logits))


class FixedStudent:
    """At entry i of each draft step it says what ``said`` has there."""

    low_precision = False

    def __init__(self, said: list[list[int]], size: int) -> None:
        self.weights = self
        self._said = said
        self._size = size
        self.lm_head = torch.nn.Linear(size, size, bias=False)
        torch.nn.init.eye_(self.lm_head.weight)

    def unroll(self, tokens: torch.Tensor, states: torch.Tensor, steps: int) -> list[torch.Tensor]:
        return [torch.tensor(row)[None, :, None] for row in self._said[:steps]]

    def norm(self, out: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(out[:, 0], self._size).float()


def test_the_head_is_asked_about_every_token_but_the_first_of_the_answer() -> None:
    # prompt 5 6, answer 7 8 9 4: entries 1, 2, 3 propose 8, 9, 4
    text = lesson([5, 6, 7, 8, 9, 4], start=1)
    vocabulary = Vocabulary(torch.arange(12), 12)
    student = FixedStudent([[7, 8, 1, 4, 0], [0, 1, 9, 4, 0]], 12)
    ((first, second),) = right_of_head(student, [text], vocabulary, 2)  # type: ignore[arg-type]
    assert first.tolist() == [True, False, True]
    assert second.tolist() == [False, True, True]


def test_a_token_that_the_head_does_not_know_counts_as_wrong() -> None:
    text = lesson([5, 6, 7, 8, 9], start=1)
    vocabulary = Vocabulary(torch.tensor([5, 6, 7, 9]), 12)  # 8 is missing
    student = FixedStudent([[3, 2, 3, 0]], 4)
    ((right,),) = right_of_head(student, [text], vocabulary, 1)  # type: ignore[arg-type]
    assert right.tolist() == [False, True]


def test_ngram_is_asked_about_the_same_places_and_a_miss_is_wrong() -> None:
    # after 1 2: 3 1 2 3 4; the first token after the prompt is not asked about
    text = lesson([1, 2, 3, 1, 2, 3, 4], start=1)
    (right,) = right_of_ngram(Ngram(name="n"), [text])
    # places: 1 (after 3, no match), 2 (after 1: 2), 3 (after 1 2: 3), 4 (after 2 3: 1, wrong)
    assert right.tolist() == [False, True, True, False]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=2, max_size=12))
def test_the_share_is_over_places_and_lies_in_its_interval(rights: list[list[bool]]) -> None:
    found = agreement([np.array(row) for row in rights])
    flat = [right for row in rights for right in row]
    assert found.share == pytest.approx(sum(flat) / len(flat))
    assert found.low <= found.share <= found.high


def test_one_text_has_no_interval_and_equal_texts_have_a_narrow_one() -> None:
    one = np.array([True, False])
    assert agreement([one]).low == agreement([one]).high == 0.5
    assert agreement([one, one, one]).low == pytest.approx(0.5)
    spread = agreement([np.array([True] * 4), np.array([False] * 4), np.array([True, True, False, False])])
    assert spread.high - spread.low > 0.5
