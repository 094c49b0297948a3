"""What a verified block adds to a row, case by case."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.engines.contract import Request
from pipeline.engines.decoding.slots import FINISH_REASONS, Slots

EOS, STOP = 2, 7


def seated(*, max_new_tokens: int = 20, ignore_eos: bool = False, rows: int = 1) -> Slots:
    """``rows`` rows of prompt (1, 1, 1) and first token 1, with stop token 7."""
    slots = Slots(rows, 64, 50, (EOS,))
    request = Request(
        request_id="r",
        prompt_id="p",
        tokens=(1, 1, 1),
        max_new_tokens=max_new_tokens,
        seed=0,
        ignore_eos=ignore_eos,
        stop_token_ids=(STOP, 999),
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
