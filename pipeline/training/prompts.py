"""What users say: the workload's own prompts, and many more that the target is made to write itself.

A chat model that reads nothing but the beginning of a user's turn goes on with what a user would ask (Magpie, Xu et al.
2024, arXiv 2406.08464). What it writes is cleaned, and nothing that is close to a held-out prompt is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipeline.engines.contract import Tokenizer
from pipeline.records.failure import InputError
from pipeline.records.target import Target
from pipeline.workloads.prompt import Message, Prompt
from pipeline.workloads.render import chat_text, render

MARK = "\u2042\u2042\u2042"
"""Stands for what the user says where a template is taken apart; no template contains it."""
LEAST_WORDS = 4
_RUN = 4
"""Words in a row that two prompts share by more than chance."""
_NEAR = 0.3
"""Share of the shorter prompt's runs that the other one has, from which on they are the same but for an edit."""
_WORD = re.compile(r"\w+")


class Opening:
    """How a user's turn is written for ``target``. ``stops``: tokens that end it.

    Raises InputError for a template that does not show what the user says.
    """

    def __init__(self, target: Target, tokenizer: Tokenizer) -> None:
        self.stops: tuple[int, ...] = ()
        self._target = target
        self._tokenizer = tokenizer
        self._before: str | None = None
        if target.chat_template != "plain":
            text = chat_text(Prompt("opening", (Message("user", MARK),)), target, tokenizer)
            self._before, mark, after = text.partition(MARK)
            if not mark:
                raise InputError(f"target {target.name}: its chat template does not show what the user says")
            special = set(getattr(tokenizer, "all_special_ids", ()))
            following = tokenizer.encode(after, add_special_tokens=False)[:1]
            self.stops = tuple(token for token in following if token in special)

    def tokens(self, words: str) -> tuple[int, ...]:
        """Up to where the user has said ``words``; () for none where nothing stands before them."""
        if self._before is not None:
            return tuple(self._tokenizer.encode(self._before + words, add_special_tokens=False))
        said = Prompt("opening", (Message("user", words),))
        try:
            return render(said, self._target, self._tokenizer)
        except InputError:
            return ()


def words(text: str) -> tuple[str, ...]:
    """Lower-case, without punctuation: what two prompts are compared by."""
    return tuple(_WORD.findall(text.lower()))


def cleaned(text: str, special: Iterable[str]) -> str | None:
    """``text`` as a prompt, None if no user would have written it: too short, garbled, repeating, special tokens."""
    text = text.strip()
    said = words(text)
    if len(said) < LEAST_WORDS or any(token in text for token in special):
        return None
    if "\ufffd" in text or any(ord(sign) < 32 and sign not in "\n\t" for sign in text):
        return None
    if len(set(said)) < len(said) / 2:
        return None
    return text


class Novelty:
    """Tells prompts that are new from those that repeat, exactly or nearly.

    ``held_out`` prompts are compared by runs of words: one is near when the shorter of the two shares 30 % of its
    runs of four words with the other, or when all its words are the same. Prompts admitted earlier only by all their
    words: there are thousands, and that they resemble each other does not spoil what is measured on the held-out ones.
    """

    def __init__(self, held_out: Sequence[str]) -> None:
        self._held_out = [(words(text), _runs(words(text))) for text in held_out]
        self._known: set[tuple[str, ...]] = {said for said, _ in self._held_out}

    def admit(self, text: str) -> bool:
        """Whether ``text`` is new; from now on it is known."""
        said = words(text)
        if said in self._known or self.is_near_held_out(text):
            return False
        self._known.add(said)
        return True

    def is_near_held_out(self, text: str) -> bool:
        said = words(text)
        runs = _runs(said)
        for other, others in self._held_out:
            fewest = min(len(runs), len(others))
            if said == other or (fewest and len(runs & others) >= _NEAR * fewest):
                return True
        return False


def _runs(said: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    return frozenset(said[i : i + _RUN] for i in range(len(said) - _RUN + 1))
