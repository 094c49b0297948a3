"""What a verified block adds to a row, case by case."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.engines.contract import Request
from pipeline.engines.decoding.slots import FINISH_REASONS, Slots
from pipeline.engines.stop_strings import Detokenizer

EOS, STOP = 2, 7
LETTERS = Detokenizer(decode=lambda ids: "".join(chr(ord("a") + i) for i in ids if i != EOS), silent=lambda i: i == EOS)


def seated(*, max_new_tokens: int = 20, ignore_eos: bool = False, rows: int = 1, stop: tuple[str, ...] = ()) -> Slots:
    """``rows`` rows of prompt (1, 1, 1) and first token 1, with stop token 7; token i reads as letter i."""
    slots = Slots(rows, 64, 50, (EOS,), LETTERS)
    request = Request(
        request_id="r",
        prompt_id="p",
        tokens=(1, 1, 1),
        max_new_tokens=max_new_tokens,
        seed=0,
        ignore_eos=ignore_eos,
        stop_token_ids=(STOP, 999),
        stop=stop,
    )
    slots.active = rows
    for row in range(rows):
        slots.seat(row, row, request)
        assert slots.commit_first(row, 1) == 0
    return slots


@pytest.mark.parametrize(
    ("drafted", "count", "next_token", "output", "tested", "accepted", "stopped", "finish"),
    [
        ([10, 11, 12], 0, 20, [20], 1, 0, 0, "abandoned"),
        ([10, 11, 12], 2, 20, [10, 11, 20], 3, 2, 0, "abandoned"),
        ([10, 11, 12], 3, 20, [10, 11, 12, 20], 3, 3, 0, "abandoned"),
        ([10, EOS, 12], 3, 20, [10, EOS], 2, 2, 1, "eos"),
        ([STOP, EOS, 12], 3, 20, [STOP], 1, 1, 1, "stop"),
        ([10, 11, EOS], 3, 20, [10, 11, EOS], 3, 3, 1, "eos"),
        ([10, 11, EOS], 2, 20, [10, 11, 20], 3, 2, 0, "abandoned"),
        ([10, 11, 12], 1, EOS, [10, EOS], 2, 1, 0, "eos"),
        ([10, 11, 12], 3, STOP, [10, 11, 12, STOP], 3, 3, 0, "stop"),
        ([10, STOP, 12], 1, STOP, [10, STOP], 2, 1, 0, "stop"),
    ],
)
def test_a_block_is_cut_after_its_first_stop(
    drafted: list[int],
    count: int,
    next_token: int,
    output: list[int],
    tested: int,
    accepted: int,
    stopped: int,
    finish: str,
) -> None:
    slots = seated()
    done = slots.commit(np.array([drafted]), np.array([3]), np.array([count]), np.array([next_token]))
    assert slots.output(0, 3) == (1, *output)
    assert (done.tested[0], done.accepted[0], done.stopped[0]) == (tested, accepted, stopped)
    assert done.emitted[0] == len(output)
    assert FINISH_REASONS[done.finish[0]] == finish


@pytest.mark.parametrize(
    ("stop", "drafted", "count", "next_token", "output", "tested", "accepted", "stopped", "finish"),
    [
        ("kl", [10, 11, 12], 3, 20, [10, 11], 2, 2, 1, "stop"),
        ("k", [10, 11, 12], 3, 20, [10], 1, 1, 1, "stop"),
        ("bk", [10, 11, 12], 3, 20, [10], 1, 1, 1, "stop"),  # the first token is part of it
        ("klmu", [10, 11, 12], 3, 20, [10, 11, 12, 20], 3, 3, 0, "stop"),
        ("ku", [10, 11, 12], 1, 20, [10, 20], 2, 1, 0, "stop"),
        ("l", [10, 11, 12], 1, 20, [10, 20], 2, 1, 0, "abandoned"),  # what was rejected was never written
        ("bbb", [10, 11, 12], 3, 20, [10, 11, 12, 20], 3, 3, 0, "abandoned"),  # only the prompt holds it
        ("k", [STOP, 10, 12], 3, 20, [STOP], 1, 1, 1, "stop"),
        ("k", [EOS, 10, 12], 3, 20, [EOS], 1, 1, 1, "eos"),
        ("k", [11, 10, EOS], 3, 20, [11, 10], 2, 2, 1, "stop"),
    ],
)
def test_a_block_is_cut_after_the_token_that_completes_a_stop_string(
    stop: str,
    drafted: list[int],
    count: int,
    next_token: int,
    output: list[int],
    tested: int,
    accepted: int,
    stopped: int,
    finish: str,
) -> None:
    slots = seated(stop=(stop,))
    done = slots.commit(np.array([drafted]), np.array([3]), np.array([count]), np.array([next_token]))
    assert slots.output(0, 3) == (1, *output)
    assert (done.tested[0], done.accepted[0], done.stopped[0]) == (tested, accepted, stopped)
    assert FINISH_REASONS[done.finish[0]] == finish


def test_a_stop_string_grows_from_block_to_block_and_follows_its_row() -> None:
    slots = seated(rows=3, stop=("klm",))
    nothing = np.zeros((3, 0), dtype=np.int64)
    slots.commit(nothing, np.zeros(3, int), np.zeros(3, int), np.array([STOP, 10, 10]))
    slots.move(2, 0)
    slots.active = 2
    done = slots.commit(nothing[:2], np.zeros(2, int), np.zeros(2, int), np.array([11, 20]))
    assert done.finish.tolist() == [0, 0]
    done = slots.commit(nothing[:2], np.zeros(2, int), np.zeros(2, int), np.array([12, 12]))
    assert [FINISH_REASONS[code] for code in done.finish] == ["stop", "abandoned"]


def test_a_slot_that_is_taken_again_remembers_no_stop_string() -> None:
    for first in ("length", "stop"):
        slots = seated(stop=("k",), max_new_tokens=2)
        step = np.zeros((1, 0), dtype=np.int64), np.zeros(1, int), np.zeros(1, int)
        done = slots.commit(*step, np.array([11 if first == "length" else 10]))
        assert FINISH_REASONS[done.finish[0]] == first
        slots.seat(0, 1, Request(request_id="s", prompt_id="p", tokens=(1,), max_new_tokens=9, seed=0))
        assert slots.commit_first(0, 10) == 0
        assert slots.commit(*step, np.array([10])).finish.tolist() == [0]


def test_stop_strings_need_a_detokenizer() -> None:
    request = Request(request_id="r", prompt_id="p", tokens=(1,), max_new_tokens=9, seed=0, stop=("a",))
    with pytest.raises(ValueError, match="nothing to decode with"):
        Slots(1, 64, 50, ()).seat(0, 0, request)


def test_proposals_never_made_are_not_tested() -> None:
    done = seated().commit(np.array([[10, 0, 0]]), np.array([1]), np.array([1]), np.array([20]))
    assert (done.proposed[0], done.tested[0], done.accepted[0], done.emitted[0]) == (1, 1, 1, 2)


def test_rows_advance_by_what_each_accepted() -> None:
    """Case 12."""
    slots = seated(rows=3)
    slots.commit(
        np.array([[10, 11], [12, 13], [14, 15]]), np.array([2, 2, 2]), np.array([0, 2, 1]), np.array([20, 21, 22])
    )
    assert [slots.output(row, 3) for row in range(3)] == [(1, 20), (1, 12, 13, 21), (1, 14, 22)]
    assert slots.last_tokens(2).tolist() == [[1, 20], [13, 21], [14, 22]]


def test_the_limit_ends_a_row_unless_its_last_token_stops_it() -> None:
    for next_token, finish in ((20, "length"), (EOS, "eos")):
        slots = seated(max_new_tokens=4)
        assert slots.room().tolist() == [2]
        done = slots.commit(np.array([[10, 11]]), np.array([2]), np.array([2]), np.array([next_token]))
        assert FINISH_REASONS[done.finish[0]] == finish
        assert done.room.tolist() == [2]


def test_an_ignored_eos_ends_nothing_and_a_stop_still_does() -> None:
    slots = seated(ignore_eos=True)
    done = slots.commit(np.array([[EOS, STOP]]), np.array([2]), np.array([2]), np.array([20]))
    assert (slots.output(0, 3), FINISH_REASONS[done.finish[0]]) == ((1, EOS, STOP), "stop")


def test_the_first_token_is_tested_like_any_other() -> None:
    request = Request(request_id="r", prompt_id="p", tokens=(1, 1), max_new_tokens=1, seed=0)
    for token, finish in ((EOS, "eos"), (9, "length")):
        slots = Slots(1, 64, 50, (EOS,))
        slots.active = 1
        slots.seat(0, 0, request)
        assert FINISH_REASONS[slots.commit_first(0, token)] == finish


def test_a_moved_row_keeps_everything() -> None:
    slots = seated(rows=2)
    slots.commit(np.zeros((2, 0), dtype=np.int64), np.zeros(2, int), np.zeros(2, int), np.array([30, 31]))
    slots.request[1], slots.seeds[1], slots.counted[1] = 5, 6, False
    slots.move(1, 0)
    assert slots.output(0, 3) == (1, 31)
    assert (slots.request[0], slots.seeds[0], slots.counted[0], slots.n[0], slots.end[0]) == (5, 6, False, 5, 23)
