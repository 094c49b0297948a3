"""Counter random numbers: a hash of (request seed, absolute position, stream), the same on every device."""

from __future__ import annotations

from torch import Tensor

PLAIN = 0
"""Draws from the target's own distribution: plain decoding, one-hot verification, the token after a full accept."""
DRAFT = 1
"""Draws of proposals from the draft's distribution."""
ACCEPT = 2
"""Acceptance tests."""
RESIDUAL = 3
"""Draws from the residual after a rejection."""


def _signed(value: int) -> int:
    """The int64 with the bit pattern of an unsigned 64-bit ``value``."""
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's ``>>`` on int64 copies the sign bit in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014): a bijection on 64 bits."""
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIER_2
    return x ^ _shift_right(x, 31)


def uniforms(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    """Uniforms in [0, 1) of 53 bits, a pure function of (seed, position, stream).

    ``seeds`` int64 [B], ``positions`` int64 [B, P], both on one device; returns float64 [B, P]. A row's numbers over
    positions are splitmix64's sequence from a state that hashes its seed and the stream, so that a request's draws
    depend neither on its slot, nor on its neighbours, nor on how it was cut into iterations.
    """
    start = _mix(_mix(seeds + _signed(_GOLDEN)) ^ _signed(stream * _GOLDEN % (1 << 64)))
    bits = _mix(start[:, None] + (positions + 1) * _signed(_GOLDEN))
    return _shift_right(bits, 11).double() * 2.0**-53
