"""How many prompts the search and the confirmation take, and which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.measurement.protocol import Span, allot
from pipeline.records.failure import InputError
from pipeline.records.settings import Protocol

PLENTY = 10_000


def places(*spans):
    return [place for span in spans for place, _ in span.dealt()]


@pytest.mark.parametrize(
    ("concurrency", "search", "looks"),
    [
        (1, 6, (8, 8, 8)),
        (2, 6, (8, 8, 8)),
        (4, 12, (12, 12, 12)),
        (5, 15, (15, 15, 15)),
        (8, 24, (24, 24, 24)),
        (32, 96, (96, 96, 96)),
    ],
)
def test_sizes_follow_the_protocol_in_whole_blocks(concurrency, search, looks):
    allotment = allot(PLENTY, concurrency, Protocol())
    assert allotment.search.count == search
    assert tuple(look.count for look in allotment.looks) == looks


def test_larger_settings_are_rounded_up_to_blocks_and_looks_end_at_thirds():
    allotment = allot(PLENTY, 3, Protocol(search_prompts=10, confirm_prompts=40))
    assert allotment.search.count == 12
    assert [look.count for look in allotment.looks] == [15, 15, 12]


def test_with_prompts_enough_none_comes_twice_and_none_is_shared():
    allotment = allot(96, 8, Protocol())
    assert places(allotment.search, *allotment.looks) == list(range(96))
    assert all(span.offset == 0 and span.distinct == span.count for span in (allotment.search, *allotment.looks))


@given(
    available=st.integers(3, 400),
    concurrency=st.integers(1, 40),
    search_prompts=st.integers(1, 40),
    confirm_prompts=st.integers(1, 60),
)
def test_whatever_there_is_search_and_confirmation_are_disjoint_and_evenly_dealt(
    available, concurrency, search_prompts, confirm_prompts
):
    protocol = Protocol(search_prompts=search_prompts, confirm_prompts=confirm_prompts)
    allotment = allot(available, concurrency, protocol)
    full = allot(PLENTY, concurrency, protocol)
    searched, confirmed = set(places(allotment.search)), set(places(*allotment.looks))
    assert not searched & confirmed
    assert searched | confirmed == set(range(allotment.end))
    assert allotment.end <= available
    # Sizes stay: what shrinks is how many prompts are distinct.
    assert allotment.search.count == full.search.count
    assert [look.count for look in allotment.looks] == [look.count for look in full.looks]
    assert all(span.count % concurrency == 0 for span in (allotment.search, *allotment.looks))
    dealt = [item for look in allotment.looks for item in look.dealt()]
    assert len(set(dealt)) == len(dealt)
    times = [places(*allotment.looks).count(place) for place in confirmed]
    assert max(times) - min(times) <= 1
    # The search gives way first, and a confirmation that could decide is never starved of it.
    if len(searched) > max(concurrency, 3):
        assert len(confirmed) == sum(look.count for look in full.looks)
    if available >= 9 and sum(look.count for look in full.looks) >= 8:
        assert len(confirmed) >= 8


@pytest.mark.parametrize(
    ("available", "concurrency", "searched", "confirmed"),
    [
        (17, 1, 5, 12),
        (14, 1, 3, 11),
        (10, 1, 2, 8),
        (9, 1, 1, 8),
        (8, 1, 2, 6),
        (3, 1, 1, 2),
        (48, 8, 8, 40),
        (48, 32, 16, 32),
    ],
)
def test_scarce_prompts_shrink_the_search_first(available, concurrency, searched, confirmed):
    allotment = allot(available, concurrency, Protocol(confirm_prompts=12))
    assert len(set(places(allotment.search))) == searched
    assert len(set(places(*allotment.looks))) == confirmed


def test_a_look_goes_on_where_the_last_one_stopped():
    looks = allot(8, 1, Protocol(confirm_prompts=12)).looks
    assert [look.dealt() for look in looks] == [
        ((2, 0), (3, 0), (4, 0), (5, 0)),
        ((6, 0), (7, 0), (2, 1), (3, 1)),
        ((4, 1), (5, 1), (6, 1), (7, 1)),
    ]


def test_too_few_prompts_name_the_workload_and_how_many_are_needed():
    with pytest.raises(InputError, match=r"workload chat: 2 prompts are too few; at least 3 .* 9 to decide"):
        allot(2, 1, Protocol(), "chat")


def test_a_span_repeats_its_own_prompts():
    assert Span(first=3, count=5, distinct=2).dealt() == ((3, 0), (4, 0), (3, 1), (4, 1), (3, 2))
