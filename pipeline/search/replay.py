"""Speculation played over text that is committed already: what every γ of a draft would accept, without running it.

Lossless decoding gives the target's distribution whatever the draft, so that plain decoding's text is text that
speculation might have written. Walking it in blocks, and letting the proposal for a place stand with the chance
min(1, q/p) that the draft gives the token there, gives the acceptance of every γ: for a token drawn from p the mean of
min(1, q/p) is Σ min(p, q), and a token that stands has the distribution that accepted proposals have (Leviathan et al.
2023, arXiv 2211.17192, section 3). Where proposals are not drawn the chance is 1 or 0 and the walk is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.engines.prompt_lookup import lookup
from pipeline.records.target import Ngram

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Script:
    """What a draft would propose at each place of one request's output, and how likely it would stand.

    The output has N tokens, of which prefill gives the first, and may have at most ``limit``. A block that begins at
    place t (t tokens are there already) proposes at most ``proposed[t]``; ``chance[t, i]`` is that of its proposal i,
    for place t + i, to stand where those before it do: 0 from the output's end on. Shapes [N] and [N, γ_max].
    """

    limit: int
    proposed: Ints
    chance: Floats

    @property
    def certain(self) -> bool:
        """Whether nothing is left to chance, so that one walk says all."""
        return bool(((self.chance == 0.0) | (self.chance == 1.0)).all())


@dataclass(frozen=True)
class Walk:
    """The row-iterations of one request, in order: room, proposed, tested, accepted, emitted as in its trace."""

    room: tuple[int, ...]
    proposed: tuple[int, ...]
    tested: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]


def scored(stands: Sequence[float], limit: int, max_gamma: int) -> Script:
    """A draft whose proposal for a place does not depend on where the block began; ``stands`` [N] by place."""
    size = len(stands)
    padded = np.concatenate((np.asarray(stands, dtype=np.float64), np.zeros(max_gamma)))
    places = np.arange(size)[:, None] + np.arange(max_gamma)
    return Script(limit, np.full(size, max_gamma, dtype=np.int64), padded[places])


def probed(
    conditional: Sequence[float], lengths: Sequence[int], size: int, limit: int, luck: np.random.Generator
) -> Script:
    """A draft of which only a probe is known: acceptance by position in the block, ``conditional`` [γ_max].

    It proposes at each place as many as it did at some place of the probe, ``lengths``.
    """
    inside = np.arange(size)[:, None] + np.arange(len(conditional)) < size
    proposed = np.asarray(lengths, dtype=np.int64)[luck.integers(len(lengths), size=size)]
    return Script(limit, proposed, np.where(inside, np.asarray(conditional, dtype=np.float64), 0.0))


def looked_up(prompt: Sequence[int], output: Sequence[int], limit: int, draft: Ngram, max_gamma: int) -> Script:
    """Prompt lookup: what followed the last tokens earlier follows from the text alone."""
    tokens = np.array([(*prompt, *output, *[-1] * max_gamma)], dtype=np.int64)
    size, begin = len(output), len(prompt)
    proposed = np.zeros(size, dtype=np.int64)
    chance = np.zeros((size, max_gamma))
    most = np.array([max_gamma], dtype=np.int64)
    for place in range(1, size):
        n = np.array([begin + place], dtype=np.int64)
        guessed, count = lookup(tokens[:, : begin + place], n, most, draft)
        proposed[place] = count[0]
        truth = tokens[0, begin + place : begin + place + int(count[0])]
        chance[place, : count[0]] = guessed[0, : count[0]] == truth
    return Script(limit, proposed, chance)


def walk(script: Script, gamma: int, luck: np.random.Generator | None = None) -> Walk:
    """Play ``script`` in blocks of γ from place 1 on. ``luck`` is needed unless all is certain, and then ignored.

    Counts are cut as the engine cuts them: proposals never reach the limit's last place, and a text that a stop ended
    ends with an accepted proposal, without a token of the target's after it.
    """
    stands = script.chance > 0.5 if luck is None else luck.random(script.chance.shape) < script.chance
    runs = np.cumprod(stands, axis=1).sum(axis=1).tolist()
    most = script.proposed.tolist()
    size, limit = len(most), script.limit
    rows: list[tuple[int, int, int, int, int]] = []
    place = 1
    while place < size:
        room = limit - place - 1
        proposed = min(most[place], gamma, room)
        accepted = min(runs[place], proposed)
        ended = accepted == size - place
        tested = accepted if ended else min(accepted + 1, proposed)
        emitted = accepted + (not ended)
        rows.append((room, proposed, tested, accepted, emitted))
        place += emitted
    return Walk(*zip(*rows, strict=True)) if rows else Walk((), (), (), (), ())
