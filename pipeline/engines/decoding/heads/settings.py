"""A head's config.json, entry by entry: what nobody asked for and could change the computation is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from pipeline.records.failure import InputError

_WRITTEN = """
    architectures auto_map model_type dtype torch_dtype transformers_version _name_or_path initializer_range
    attention_dropout pretraining_tp use_cache bos_token_id eos_token_id pad_token_id max_position_embeddings
    max_window_layers return_dict output_hidden_states output_attentions id2label label2id problem_type
    chunk_size_feed_forward tie_word_embeddings has_no_defaults_at_init
"""
_OF_EVERY_MODEL = frozenset(_WRITTEN.split())
"""Entries that transformers writes into any configuration and that say nothing of how a head computes.

``tie_word_embeddings`` too: many heads carry their target's, and all have an output layer of their own.
"""


class Settings:
    """The entries of one mapping; ``what`` begins every message. Each getter raises InputError for another type."""

    def __init__(self, entries: Mapping[str, object], what: str) -> None:
        self._entries = entries
        self.what = what
        self._asked: set[str] = set(_OF_EVERY_MODEL)

    def integer(self, name: str, default: int | None = None) -> int:
        """At least 1. Without a default (None) the entry must be there; null counts as absent, here and below."""
        value = self._get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.refuse(name, value, "a whole number of at least 1")
        return value

    def number(self, name: str, default: float) -> float:
        value = self._get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.refuse(name, value, "a number")
        return float(value)

    def flag(self, name: str, default: bool | None = False) -> bool:
        value = self._get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not value or any(type(item) is not int or item < 0 for item in value):
            self.refuse(name, value, "null or a list of whole numbers")
        return tuple(value)

    def strings(self, name: str) -> tuple[str, ...]:
        value = self._get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            self.refuse(name, value, "a list of strings")
        return tuple(value)

    def section(self, name: str) -> Settings | None:
        """A mapping within this one; None if it is not there."""
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, value, "a mapping")
        return Settings(value, f"{self.what} {name}")

    def mapping(self, name: str) -> dict[str, object]:
        value = self._get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.refuse(name, value, "a mapping")
        return dict(value)

    def choice(self, name: str, *allowed: str) -> str:
        """One of ``allowed``, the first where it is not given."""
        value = self._get(name)
        if value is None:
            return allowed[0]
        if value not in allowed:
            self.refuse(name, value, ", ".join(allowed))
        return str(value)

    def only(self, name: str, *allowed: object) -> None:
        """Refuse any value of ``name`` but those ``allowed`` and null."""
        value = self._get(name)
        if value is not None and value not in allowed:
            self.refuse(name, value, " or ".join(_shown(item) for item in allowed))

    def ignore(self, *names: str) -> None:
        """These say nothing of how a head computes."""
        self._asked.update(names)

    def refuse_the_rest(self) -> None:
        """Raise InputError for an entry that nobody asked for, unless it is null or false: that is switched off."""
        for name, value in self._entries.items():
            if name not in self._asked and value is not None and value is not False:
                raise InputError(
                    f"{self.what}: {name}={_shown(value)} is not known here, and could change what it computes"
                )

    def refuse(self, name: str, value: object, allowed: str) -> NoReturn:
        said = "is missing" if value is None else f"is {_shown(value)}"
        raise InputError(f"{self.what}: {name} {said}; allowed: {allowed}")

    def _get(self, name: str) -> object:
        self._asked.add(name)
        return self._entries.get(name)


def _shown(value: object) -> str:
    return (
        {True: "true", False: "false", None: "null"}[value]
        if value is None or isinstance(value, bool)
        else str(value)[:60]
    )
