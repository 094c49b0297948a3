"""Replay plays committed text in blocks as the engine would have."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.prompt_lookup import lookup
from pipeline.records.target import Ngram
from pipeline.search.replay import looked_up, probed, scored, walk

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=24)


def speculate(prompt: list[int], output: list[int], limit: int, gamma: int, draft: Ngram) -> list[tuple[int, ...]]:
    """The engine's loop over a text that is known, spelled out: (room, proposed, tested, accepted, emitted)."""
    rows, done = [], 1
    while done < len(output):
        committed = prompt + output[:done]
        room = limit - done - 1
        want = min(gamma, room)
        guess: list[int] = []
        if want:
            tokens, count = lookup(
                np.array([committed + [0] * gamma]), np.array([len(committed)]), np.array([want]), draft
            )
            guess = tokens[0, : count[0]].tolist()
        tested = accepted = emitted = 0
        for token in guess:
            tested += 1
            if token != output[done + emitted]:
                break
            accepted += 1
            emitted += 1
            if done + emitted == len(output):  # an end was accepted
                break
        if done + emitted < len(output):
            emitted += 1
        rows.append((room, len(guess), tested, accepted, emitted))
        done += emitted
    return rows


@given(TOKENS, TOKENS, st.integers(0, 5), st.integers(1, 5), st.sampled_from(["first", "last"]), st.integers(1, 3))
def test_prompt_lookup_walks_as_the_loop_does(
    prompt: list[int], output: list[int], slack: int, gamma: int, match: str, max_n: int
) -> None:
    draft = Ngram(name="ngram", match=match, max_n=max_n)  # type: ignore[arg-type]
    limit = len(output) + slack  # with slack the text was ended by a stop
    played = walk(looked_up(prompt, output, limit, draft, max_gamma=5), gamma)
    expected = speculate(prompt, output, limit, gamma, draft)
    assert (
        list(zip(played.room, played.proposed, played.tested, played.accepted, played.emitted, strict=True)) == expected
    )


@given(TOKENS, st.data(), st.integers(0, 4), st.integers(1, 6))
def test_counts_hold_as_in_a_trace(output: list[int], data: st.DataObject, slack: int, gamma: int) -> None:
    chance = st.floats(0, 1) | st.sampled_from([0.0, 1.0])
    stands = data.draw(st.lists(chance, min_size=len(output), max_size=len(output)))
    script = scored(stands, len(output) + slack, max_gamma=6)
    played = walk(script, gamma, np.random.default_rng(0))
    assert 1 + sum(played.emitted) == len(output)
    done = 1
    for k, (room, proposed, tested, accepted, emitted) in enumerate(
        zip(played.room, played.proposed, played.tested, played.accepted, played.emitted, strict=True)
    ):
        assert room == len(output) + slack - done - 1
        assert 0 <= accepted <= tested <= proposed <= min(gamma, room)
        ended = k == len(played.room) - 1 and emitted == accepted
        assert ended or emitted == accepted + 1
        assert tested == (accepted if ended else min(accepted + 1, proposed))
        done += emitted


@given(st.lists(st.floats(0.05, 0.95), min_size=2, max_size=7), st.integers(1, 3))
def test_mean_over_walks_is_the_exact_expectation(stands: list[float], gamma: int) -> None:
    """Walks by chance against enumeration: how many iterations a text takes."""
    size = len(stands)
    script = scored(stands, size, max_gamma=3)

    def iterations(place: int) -> float:
        if place >= size:
            return 0.0
        proposed = min(gamma, size - place - 1)
        total = 0.0
        for outcome in product((True, False), repeat=proposed):
            chance = np.prod([w if ok else 1 - w for w, ok in zip(stands[place:], outcome, strict=False)])
            run = next((i for i, ok in enumerate(outcome) if not ok), proposed)
            total += float(chance) * iterations(place + run + 1)
        return 1.0 + total

    luck = np.random.default_rng(1)
    counts = [len(walk(script, gamma, luck).room) for _ in range(1500)]
    error = np.std(counts) / len(counts) ** 0.5
    assert abs(np.mean(counts) - iterations(1)) <= 5 * error + 1e-9


def test_what_is_certain_needs_no_luck() -> None:
    assert scored([0.0, 1.0, 1.0], 3, 2).certain
    assert not scored([0.0, 0.5, 1.0], 3, 2).certain
    assert probed([1.0, 0.0], [2], 5, 5, np.random.default_rng(0)).certain


def test_a_probed_draft_is_accepted_by_position_in_the_block() -> None:
    played = walk(probed([1.0, 0.0, 1.0], [3], 12, 12, np.random.default_rng(0)), 3)
    assert set(played.accepted[:-1]) == {1}


def test_a_probed_draft_proposes_nothing_as_often_as_it_did() -> None:
    played = walk(probed([0.0], [1, 0, 1, 1], 4000, 4000, np.random.default_rng(0)), 1)
    assert 1 - sum(played.proposed) / len(played.proposed) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("size", [0, 1])
def test_a_text_of_one_token_has_no_iteration(size: int) -> None:
    assert walk(scored([1.0] * size, 4, 2), 2).room == ()
