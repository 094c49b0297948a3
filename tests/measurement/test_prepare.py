"""A cell's prompts, rendered, with the answers that later turns build on."""

from __future__ import annotations

import json

import pytest
from simulated_rounds import SAMPLED

from pipeline.engines.machine import Machine
from pipeline.engines.simulated import EOS, ByteTokenizer
from pipeline.measurement.prepare import prepare
from pipeline.records.failure import InputError
from pipeline.records.settings import Protocol


@pytest.fixture
def chat_file(tmp_path):
    path = tmp_path / "chat.jsonl"
    lines = [{"id": f"c{n}", "messages": [{"role": "user", "content": f"question {n}"}]} for n in range(30)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def spec_bench_file(tmp_path):
    """Six conversations of three turns."""
    path = tmp_path / "turns.jsonl"
    lines = [
        {"question_id": n, "category": "writing", "turns": [f"first {n}", f"second {n}", f"third {n}"]}
        for n in range(6)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


class ShowsEnd(ByteTokenizer):
    """Writes the end-of-text token out, as some tokenizers do."""

    def decode(self, token_ids):
        return "".join("<eos>" if token == EOS else chr(token) for token in token_ids)


def run(engine_for, make_task, cell, machine=None, **kwargs):
    lines: list[str] = []
    engine = engine_for(make_task(cell), machine or Machine())
    engine.tokenizer = ShowsEnd()
    return prepare(engine, cell, Protocol(confirm_prompts=12), lines.append, **kwargs), lines


def test_prompts_come_arranged_and_only_as_many_as_can_be_used(make_cell, make_task, engine_for, chat_file):
    got, _ = run(engine_for, make_task, make_cell(format="chat", path=chat_file))
    assert len(got.prompts) == 18
    assert [p.id for p in got.prompts] != sorted(p.id for p in got.prompts)
    again, _ = run(engine_for, make_task, make_cell(format="chat", path=chat_file))
    assert got == again
    text = bytes(got.prompts[0].tokens).decode()
    assert text == f"<|user|>question {got.prompts[0].id[1:]}\n<|assistant|>"


@pytest.mark.parametrize("sampling", [None, SAMPLED])
def test_later_turns_build_on_the_targets_own_answers(make_cell, make_task, engine_for, spec_bench_file, sampling):
    cell = make_cell(**({"sampling": sampling} if sampling else {}), format="spec_bench", path=spec_bench_file)
    got, lines = run(engine_for, make_task, cell, Machine(eos_rate=0.05))
    texts = [bytes(token for token in p.tokens if token < 256).decode() for p in got.prompts]
    assert len(texts) == 18
    for n in range(6):
        first, second, third = sorted((t for t in texts if f"first {n}\n" in t), key=len)
        assert first == f"<|user|>first {n}\n<|assistant|>"
        assert second.startswith(first)
        assert third.startswith(second), "the turns of a conversation share its answers"
        answer = second.removeprefix(first).partition("\n<|user|>")[0]
        assert len(answer) <= cell.workload.output_tokens
        assert set(answer) <= set("abcdefghijklmnopqrstuvwxyz"), "the end-of-text token is left out"
    assert len({len(text) for text in texts}) > 6
    # All first answers at once, though two later turns need each; then all second ones.
    assert [line.rpartition("·")[2].strip() for line in lines] == ["answering 6 earlier turns"] * 2


def test_answers_end_before_the_workloads_stop_strings(make_cell, make_task, engine_for, spec_bench_file):
    cell = make_cell(format="spec_bench", path=spec_bench_file, stop=("e", "no"))
    got, _ = run(engine_for, make_task, cell)
    texts = [bytes(token for token in p.tokens if token < 256).decode() for p in got.prompts]
    answers = [part.partition("\n")[0] for text in texts for part in text.split("<|assistant|>")[1:-1]]
    assert len(answers) == 18
    assert any(answers)
    assert all("e" not in answer and "no" not in answer for answer in answers)


def test_a_stop_id_that_is_no_token_is_refused_before_any_prompt_is_read(make_cell, make_task, engine_for):
    run(engine_for, make_task, make_cell(stop_token_ids=(257,)))
    with pytest.raises(
        InputError, match=r"workloads\.chat\.stop_token_ids: 258 is no token of target sim; .* 0 to 257"
    ):
        run(engine_for, make_task, make_cell(stop_token_ids=(3, 258), format="chat", path="absent.jsonl"))


def test_a_prompt_over_the_workloads_limit_is_named(make_cell, make_task, engine_for, chat_file):
    cell = make_cell(format="chat", path=chat_file, max_prompt_tokens=20)
    with pytest.raises(
        InputError, match=r"workload chat: prompt c\d+ has \d+ tokens, more than its max_prompt_tokens 20"
    ):
        run(engine_for, make_task, cell)


def test_a_prompt_over_the_models_context_is_named_with_what_it_leaves(make_cell, make_task, engine_for, chat_file):
    cell = make_cell(format="chat", path=chat_file)
    run(engine_for, make_task, cell, Machine(max_context=34 + 24 + 1), max_gamma=0)
    with pytest.raises(InputError, match=r"prompt c\d+ has 3\d tokens; sim leaves it 30 .*output_tokens 24 - gamma 4"):
        run(engine_for, make_task, cell, Machine(max_context=34 + 24 + 1), max_gamma=4)


def test_prompts_are_lengthened_with_text_of_their_own(make_cell, make_task, engine_for, chat_file):
    plain, _ = run(engine_for, make_task, make_cell(format="chat", path=chat_file))
    cell = make_cell(format="chat", path=chat_file, context_tokens=700)
    got, lines = run(engine_for, make_task, cell)
    assert [prompt.id for prompt in got.prompts] == [prompt.id for prompt in plain.prompts]
    assert {len(prompt.tokens) for prompt in got.prompts} <= {697, 698, 699, 700}, "a character is up to four tokens"
    texts = [bytes(prompt.tokens).decode() for prompt in got.prompts]
    for prompt, text in zip(got.prompts, texts, strict=True):
        assert text.startswith("<|user|>Reference material:\n\n")
        assert text.endswith(f"\n\n---\n\nquestion {prompt.id[1:]}\n<|assistant|>")
    assert len({text[40:80] for text in texts}) == len(texts)
    assert got.content_hash != plain.content_hash
    assert lines == ["sim · chat · greedy · C1 · lengthening 18 prompts"]
    assert run(engine_for, make_task, cell)[0] == got


def test_only_the_last_turn_carries_text_along(make_cell, make_task, engine_for, spec_bench_file):
    plain, _ = run(engine_for, make_task, make_cell(format="spec_bench", path=spec_bench_file))
    cell = make_cell(format="spec_bench", path=spec_bench_file, context_tokens=500)
    got, _ = run(engine_for, make_task, cell)
    for short, long in zip(plain.prompts, got.prompts, strict=True):
        before, user, last = bytes(short.tokens).decode().rpartition("<|user|>")
        text = bytes(long.tokens).decode()
        assert text.startswith(before + user + "Reference material:\n\n"), "earlier answers are those of plain prompts"
        assert text.endswith("\n\n---\n\n" + last)
        assert 497 <= len(long.tokens) <= 500


def test_a_length_beyond_the_models_context_is_refused(make_cell, make_task, engine_for, chat_file):
    cell = make_cell(format="chat", path=chat_file, context_tokens=700)
    with pytest.raises(InputError, match=r"prompt c\d+ has \d+ tokens; sim leaves it 575 \(context 600"):
        run(engine_for, make_task, cell, Machine(max_context=600))
