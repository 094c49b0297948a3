"""How the time there is falls to collecting and to learning, from rates that were measured."""

from __future__ import annotations

from dataclasses import dataclass

MEASURING = 0.07
"""Share of the time that is left for measuring at the end."""
_LEAST_LEARNING = 0.2


@dataclass(frozen=True)
class Budget:
    """``total_s`` for everything. More text makes a better head only while there is time to learn from it ``epochs``
    times."""

    total_s: float
    epochs: float

    def is_enough(self, spent_s: float, entries: int, rate: float, batch_s: float) -> bool:
        """Whether to stop collecting, after ``spent_s`` and with ``entries`` to learn from at ``rate`` a second.

        ``batch_s``: what another batch would take.
        """
        return spent_s + batch_s + self.epochs * entries / rate > self.total_s * (1 - MEASURING)

    def learning_s(self, spent_s: float) -> float:
        """What is left for learning once collecting is over; never less than a fifth of all."""
        return max(self.total_s * (1 - MEASURING) - spent_s, _LEAST_LEARNING * self.total_s)
