"""What the simulated machine costs, accepts and breaks at, and how a target's source says so."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, cast, get_args
from urllib.parse import parse_qsl

from pipeline.records.failure import InputError
from pipeline.records.target import Draft

Fault = Literal["out_of_memory", "error", "crash", "hang", "wrong_text"]

SCHEME = "simulated:"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the machine costs and accepts. Times are virtual ms, except ``sleep_s``: real seconds a run.

    A forward over t positions takes max(``tau0_ms``, t · ``token_ms``): flat while memory-bound, then linear.
    Proposal i of a block is accepted with probability (``alpha`` ± up to ``alpha_spread`` by prompt) ·
    ``alpha_decay``^i; a row proposes nothing with probability ``miss``. ``noise`` is the lognormal σ of each
    iteration, ``block_noise`` that of a factor shared by a whole run. A text ends with probability ``eos_rate`` at
    each token. Faults begin after ``fail_after`` good runs with the draft; ``wrong_text`` spoils the last token.
    ``tie_margin`` is what every choice is said to have been won by.
    """

    tau0_ms: float = 10.0
    token_ms: float = 0.25
    draft_ms: float = 0.5
    overhead_ms: float = 0.1
    prefill_ms: float = 0.05
    alpha: float = 0.7
    alpha_decay: float = 1.0
    alpha_spread: float = 0.1
    miss: float = 0.0
    noise: float = 0.02
    block_noise: float = 0.0
    eos_rate: float = 0.0
    tie_margin: float = 1.0
    max_context: int = 4096
    draft_bytes: int = 1 << 20
    seed: int = 0
    sleep_s: float = 0.0
    fail_after: int = 0
    by_draft: Mapping[str, float] = field(default_factory=dict)
    """``alpha.NAME``, ``draft_ms.NAME``, ``miss.NAME`` → value."""
    fail: Mapping[str, Fault] = field(default_factory=dict)
    """A draft's name, ``off`` or ``target`` → fault."""

    def forward_ms(self, positions: int) -> float:
        """One forward of the target over so many positions of all rows."""
        return max(self.tau0_ms, self.token_ms * positions)

    def of(self, key: Literal["alpha", "draft_ms", "miss"], draft: Draft) -> float:
        """``key`` for ``draft``: its own value where it has one."""
        return self.by_draft.get(f"{key}.{draft.name}", cast(float, getattr(self, key)))


def machine_from(source: str, machine: Machine) -> Machine:
    """``machine`` changed as a source like ``simulated:?alpha=0.8&tau0_ms=10`` says; other sources change nothing.

    The keys are the fields of ``Machine``; ``alpha.NAME``, ``draft_ms.NAME`` and ``miss.NAME`` hold for one draft;
    ``fail.NAME=KIND`` makes runs with it fail (``fail.off``: plain decoding; ``fail.target``: opening). Raises
    InputError for a key or value unknown.
    """
    if not source.startswith(SCHEME):
        return machine
    kinds = {f.name: type(getattr(machine, f.name)) for f in fields(Machine) if f.name not in {"by_draft", "fail"}}
    changes: dict[str, float | int] = {}
    by_draft, fail = dict(machine.by_draft), dict(machine.fail)
    for key, value in parse_qsl(source.removeprefix(SCHEME).removeprefix("?"), keep_blank_values=True):
        head, _, name = key.partition(".")
        try:
            if head == "fail" and name and value in get_args(Fault):
                fail[name] = cast(Fault, value)
            elif head in {"alpha", "draft_ms", "miss"} and name:
                by_draft[key] = float(value)
            else:
                changes[key] = kinds[key](value)
        except (KeyError, ValueError):
            raise InputError(
                f"target source {source}: {key}={value} is not understood; keys are {', '.join(sorted(kinds))}, "
                f"alpha.NAME, draft_ms.NAME, miss.NAME and fail.NAME={'|'.join(get_args(Fault))}"
            ) from None
    return replace(machine, **changes, by_draft=by_draft, fail=fail)  # type: ignore[arg-type]


def break_down(machine: Machine, name: str, runs: int) -> None:
    """Fail as ``machine`` says ``name`` does after so many good ``runs``."""
    fault = machine.fail.get(name)
    if fault is None or runs < machine.fail_after:
        return
    if fault == "crash":
        os._exit(70)
    if fault == "hang":
        time.sleep(24 * 3600)
    if fault == "out_of_memory":
        raise MemoryError(f"simulated: {name} does not fit")
    if fault == "error":
        raise RuntimeError(f"simulated: {name} is broken")
