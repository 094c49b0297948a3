"""Which written prompts are kept, and how a user's turn begins in a template."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_chat import EOS, USER, tiny_chat
from transformers import AutoTokenizer

from pipeline.records.failure import InputError
from pipeline.training.prompts import LEAST_WORDS, Novelty, Opening, cleaned, words

WORDS = st.lists(st.sampled_from([f"word{i}" for i in range(40)]), min_size=8, max_size=30, unique=True)


@given(st.text(max_size=80))
def test_what_is_cleaned_stays_clean(text: str) -> None:
    kept = cleaned(text, ["<|end|>"])
    if kept is not None:
        assert cleaned(kept, ["<|end|>"]) == kept
        assert kept in text
        assert len(words(kept)) >= LEAST_WORDS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "two words",
        "one <|end|> two three four",
        "a bad \ufffd sign in here",
        "no no no no no no no yes",
        "a \x00 b c d",
    ],
)
def test_what_no_user_writes_is_not_kept(text: str) -> None:
    assert cleaned(text, ["<|end|>"]) is None


def test_a_question_is_kept_without_the_blanks_around_it() -> None:
    assert cleaned("  How do I bake\nsourdough bread? ", []) == "How do I bake\nsourdough bread?"


@given(said=WORDS, cut=st.integers(0, 3))
def test_neither_a_held_out_prompt_nor_most_of_it_is_admitted(said: list[str], cut: int) -> None:
    novelty = Novelty([" ".join(said)])
    assert not novelty.admit(" ".join(said).upper() + "?!")
    assert not novelty.admit(" ".join(said[cut:]))
    assert not novelty.admit("before it " + " ".join(said) + " and after")


@given(said=WORDS, other=WORDS)
def test_a_prompt_without_words_in_a_row_in_common_is_admitted_once(said: list[str], other: list[str]) -> None:
    novelty = Novelty([" ".join(said)])
    fresh = " ".join(f"{word}x" for word in other)
    assert novelty.admit(fresh)
    assert not novelty.admit(fresh)


def test_a_common_beginning_is_no_likeness() -> None:
    novelty = Novelty(["I'm planning a trip to Porto for my mother and me in late October, she walks well on the flat"])
    assert novelty.admit("I'm planning a trip to Ghana and would like a list of what to pack, please")


def test_a_turn_begins_as_the_template_writes_it(tmp_path: Path) -> None:
    target = tiny_chat(tmp_path)
    opening = Opening(target, AutoTokenizer.from_pretrained(target.source))
    assert opening.tokens("")[-1] == USER
    assert opening.tokens("w9 w8")[-2:] == (9, 8)
    assert opening.tokens("w9")[:-1] == opening.tokens("")
    assert opening.stops == (EOS,)


def test_without_a_template_only_words_begin_it(tmp_path: Path) -> None:
    import dataclasses

    target = dataclasses.replace(tiny_chat(tmp_path, template=None), chat_template="plain")
    opening = Opening(target, AutoTokenizer.from_pretrained(target.source))
    assert opening.tokens("") == ()
    assert opening.tokens("w9 w8") == (9, 8)
    assert opening.stops == ()


def test_a_template_that_hides_what_is_said_is_refused(tmp_path: Path) -> None:
    target = tiny_chat(tmp_path, template="{{ '<s> nothing' }}")
    with pytest.raises(InputError, match="does not show what the user says"):
        Opening(target, AutoTokenizer.from_pretrained(target.source))
