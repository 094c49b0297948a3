"""Prompt lookup against its definition."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engines.prompt_lookup import lookup
from pipeline.records.target import Ngram


def by_definition(tokens: list[int], dlen: int, draft: Ngram) -> list[int]:
    """What follows the first or last earlier occurrence of the longest suffix that has one."""
    for k in range(draft.max_n, draft.min_n - 1, -1):
        suffix = tokens[-k:]
        starts = [i for i in range(len(tokens) - k) if tokens[i : i + k] == suffix] if len(tokens) > k else []
        if starts:
            after = (starts[0] if draft.match == "first" else starts[-1]) + k
            return tokens[after : after + dlen]
    return []


def looked_up(rows: list[list[int]], dlen: list[int], draft: Ngram) -> list[list[int]]:
    """``lookup`` on rows padded with a token that would match, to show that nothing uncommitted is read."""
    width = max(map(len, rows)) + 3
    tokens = np.array([row + [row[-1]] * (width - len(row)) for row in rows], dtype=np.int64)
    found, proposed = lookup(tokens, np.array([len(row) for row in rows]), np.array(dlen), draft)
    assert found.shape[1] >= proposed.max()
    return [found[i, : proposed[i]].tolist() for i in range(len(rows))]


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=24), min_size=1, max_size=4),
    sizes=st.tuples(st.integers(1, 4), st.integers(0, 3)),
    match=st.sampled_from(["first", "last"]),
    data=st.data(),
)
def test_lookup_is_the_definition_for_every_row(
    rows: list[list[int]], sizes: tuple[int, int], match: Literal["first", "last"], data: st.DataObject
) -> None:
    draft = Ngram(name="n", min_n=sizes[0], max_n=sizes[0] + sizes[1], match=match)
    dlen = data.draw(st.lists(st.integers(0, 6), min_size=len(rows), max_size=len(rows)))
    assert looked_up(rows, dlen, draft) == [by_definition(r, d, draft) for r, d in zip(rows, dlen, strict=True)]


@pytest.mark.parametrize(("match", "proposal"), [("first", [7, 8]), ("last", [9, 5])])
def test_first_and_last_occurrence_differ(match: Literal["first", "last"], proposal: list[int]) -> None:
    assert looked_up([[5, 6, 7, 8, 5, 6, 9, 5, 6]], [2], Ngram(name="n", match=match)) == [proposal]


def test_a_longer_match_wins_over_an_earlier_one() -> None:
    assert looked_up([[2, 9, 1, 2, 8, 1, 2]], [1], Ngram(name="n", match="first")) == [[8]]


def test_a_match_shorter_than_min_n_is_none() -> None:
    assert looked_up([[1, 2, 3, 2]], [4], Ngram(name="n", min_n=2)) == [[]]


def test_proposals_stop_where_the_text_stops() -> None:
    assert looked_up([[4, 4, 4]], [5], Ngram(name="n", match="last", max_n=2)) == [[4]]
