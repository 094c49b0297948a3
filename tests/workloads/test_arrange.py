"""The order of dealing out is random, repeatable, and independent of the file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.workloads.arrange import arrange
from pipeline.workloads.prompt import Message, Prompt

PROMPTS = tuple(Prompt(f"chat-{n:03d}", (Message("user", str(n)),)) for n in range(20))


def test_the_order_is_this_one_on_every_machine() -> None:
    assert [prompt.id for prompt in arrange(PROMPTS[:5], 0)] == [
        "chat-003",
        "chat-004",
        "chat-002",
        "chat-000",
        "chat-001",
    ]


@given(st.permutations(PROMPTS), st.integers(0, 10))
def test_the_order_of_the_file_does_not_matter(shuffled: list[Prompt], seed: int) -> None:
    assert arrange(shuffled, seed) == arrange(PROMPTS, seed)


@given(st.sets(st.sampled_from(PROMPTS)), st.integers(0, 10))
def test_taking_prompts_away_leaves_the_others_in_order(kept: set[Prompt], seed: int) -> None:
    assert arrange(tuple(kept), seed) == tuple(prompt for prompt in arrange(PROMPTS, seed) if prompt in kept)


def test_another_seed_is_another_order() -> None:
    assert arrange(PROMPTS, 0) != arrange(PROMPTS, 1)
    assert arrange(PROMPTS, 0) != PROMPTS
