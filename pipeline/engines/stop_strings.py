"""Where a text ends that must end at a stop string: at the first token with which its decoded text holds one.

By definition, for output y: the smallest k such that decode(y[:k]) contains a stop string. Ids cannot be cut inside a
token, so that y[:k] ends with the token that completes the string; the delivered text ends before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.records.trace import FinishReason

REPLACEMENT = "\ufffd"
"""What bytes that are no character decode to, half a character among them: no stop string may hold it."""

_LONGEST_CHARACTER = 4
"""Bytes of UTF-8: so many tokens may share one character."""
_PATIENCE = 64
"""Tokens after which a text that never ends in a whole character is cut anyway: it is no text."""


@dataclass(frozen=True)
class Detokenizer:
    """From ids to the text that a client is given.

    ``decode`` leaves special tokens out and tidies nothing; ``silent`` says of an id that it has no text (a special
    token, a row that pads an embedding table). ``special``: ids of special tokens by how they are written.
    """

    decode: Callable[[Sequence[int]], str]
    silent: Callable[[int], bool]
    special: Mapping[str, int] = field(default_factory=dict)


class StopWatch:
    """Watches one output as it grows. A token costs the decoding of a few: as much text as the longest stop string.

    Only the last tokens are decoded each time, in which text reads as it does in the whole but for its beginning: a
    space that joins the first token may be lost, and a character cut in two gives up to three replacement signs. So
    before tokens are forgotten, the longest stop string must fit behind that beginning, and tokens are forgotten where
    a character ends, if one ends at all. What is found is then looked for in the whole text, which decides.
    """

    def __init__(self, stops: Sequence[str], detokenizer: Detokenizer) -> None:
        self._stops = tuple(stops)
        self._decode = detokenizer.decode
        self._silent = detokenizer.silent
        self._reach = max(map(len, self._stops)) + _LONGEST_CHARACTER
        self._output: list[int] = []
        self._window: list[int] = []
        self._mark = 0  # the window's tokens before it are forgotten once there is text enough after it
        self._marked_length = 0

    def ends_with(self, token: int) -> bool:
        """Append ``token``: whether the text now holds a stop string."""
        self._output.append(token)
        if self._silent(token):
            return False
        self._window.append(token)
        text = self._decode(self._window)
        if self._holds_stop(text) and self._holds_stop(self._decode(self._output)):
            return True
        self._forget(text)
        return False

    def first_end(self, block: Sequence[int]) -> int | None:
        """Append ``block`` up to the first of its tokens that ends the text; where in the block that is."""
        return next((place for place, token in enumerate(block) if self.ends_with(token)), None)

    def _holds_stop(self, text: str) -> bool:
        return any(stop in text for stop in self._stops)

    def _forget(self, text: str) -> None:
        since = len(self._window) - self._mark
        whole = not text.endswith(REPLACEMENT) or since >= _PATIENCE
        if whole and len(text) - self._marked_length >= self._reach:
            del self._window[: self._mark]
            self._mark = since
            self._marked_length = len(self._decode(self._window))


def delivered(
    output: Sequence[int], finish: FinishReason, stops: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> tuple[str, str]:
    """The text of ``output`` as a client is given it, and the stop string that ended it ("" if none did).

    It ends before the earliest stop string in it (of several that begin there, the first of ``stops``), so that it
    holds none; an end-of-text or stop token that ended it is left out.
    """
    text = decode(output)
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if found:
        at, stop = min(found, key=lambda pair: pair[0])
        return text[:at], stop
    return (decode(output[:-1]) if finish in ("eos", "stop") else text), ""
