"""A lesson says what the target thought at each place, whoever shared the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_chat import BOS, FAMILIES, VOCABULARY, tiny_chat
from transformers import AutoModelForCausalLM

from pipeline.engines.contract import Request
from pipeline.records.cell import Sampling
from pipeline.training.collect import GREEDY, WARM
from pipeline.training.progress import Stopped
from pipeline.training.recorder import CHOICES
from pipeline.training.teacher import Lesson, Teacher

STATES = (0, 2, 3)


def requests(count: int, most: int = 9) -> list[Request]:
    draw = torch.Generator().manual_seed(5)
    return [
        Request(
            request_id=str(i),
            prompt_id=str(i),
            tokens=(BOS, *torch.randint(5, VOCABULARY, (3 + 2 * i,), generator=draw).tolist()),
            max_new_tokens=most + i % 3,
            seed=i,
            ignore_eos=i % 2 == 0,
        )
        for i in range(count)
    ]


def assert_is_what_transformers_sees(lesson: Lesson, source: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(source).eval()
    with torch.no_grad():
        out = model(lesson.tokens[None].long(), output_hidden_states=True)
    wanted = torch.cat([out.hidden_states[state][0] for state in STATES], dim=-1)[:-1]
    torch.testing.assert_close(lesson.states.float(), wanted, atol=2e-2, rtol=2e-2)  # kept in bfloat16
    best = torch.topk(out.logits[0, lesson.start : -1], CHOICES, dim=-1)
    torch.testing.assert_close(lesson.choices.logits, best.values, atol=1e-4, rtol=1e-4)
    assert torch.equal(lesson.choices.ids[:, 0].long(), best.indices[:, 0])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_what_it_writes_in_a_batch_with_refills(tmp_path: Path, family: str, sampling: Sampling) -> None:
    target = tiny_chat(tmp_path, family)
    teacher = Teacher(target, "float32", "cpu")
    asked = requests(7)
    lessons = teacher.teach(asked, sampling, STATES, 3, lambda rows: None)
    assert [tuple(x.tokens[: x.start + 1].tolist()) for x in lessons] == [r.tokens for r in asked if len(lessons) == 7]
    for lesson in lessons:
        assert_is_what_transformers_sees(lesson, target.source)
        if sampling.greedy:
            assert torch.equal(lesson.choices.ids[:, 0], lesson.tokens[lesson.start + 1 :])


def test_what_it_reads(tmp_path: Path) -> None:
    target = tiny_chat(tmp_path)
    lesson = Teacher(target, "float32", "cpu").read([BOS, *range(20, 50)], STATES)
    assert lesson.start == 0
    assert_is_what_transformers_sees(lesson, target.source)


def test_a_request_that_ends_at_once_teaches_nothing_and_spoils_nothing(tmp_path: Path) -> None:
    target = tiny_chat(tmp_path)
    teacher = Teacher(target, "float32", "cpu")
    first, second, third = requests(3)
    short = Request(request_id="s", prompt_id="s", tokens=second.tokens, max_new_tokens=1, seed=0)
    lessons = teacher.teach([first, short, third], GREEDY, STATES, 3, lambda rows: None)
    assert len(lessons) == 2
    for lesson in lessons:
        assert_is_what_transformers_sees(lesson, target.source)


def test_what_is_looked_at_may_end_it_and_the_teacher_goes_on(tmp_path: Path) -> None:
    teacher = Teacher(tiny_chat(tmp_path), "float32", "cpu")
    seen = []

    def look(rows: int) -> None:
        seen.append(rows)
        if len(seen) == 4:
            raise Stopped

    with pytest.raises(Stopped):
        teacher.teach(requests(5), GREEDY, STATES, 2, look)
    assert max(seen) == 2
    again = teacher.teach(requests(5), GREEDY, STATES, 2, lambda rows: None)
    assert len(again) >= 4
