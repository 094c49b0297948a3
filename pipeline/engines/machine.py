"""What the simulated machine costs, accepts and breaks at, and how a target's source says so."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, cast, get_args
from urllib.parse import parse_qsl

from pipeline.engines import roofline
from pipeline.engines.devices import DEVICES, Device
from pipeline.records.failure import InputError
from pipeline.records.shape import ModelShape
from pipeline.records.target import Draft, DraftModel, DType

Fault = Literal["out_of_memory", "error", "crash", "hang", "wrong_text"]

SCHEME = "simulated:"

_NOT_PLAIN = {"device", "shape", "dtype", "by_draft", "shapes", "fail"}
"""Fields that no key sets by the type of its value; the target's own settings say the dtype."""
_NUMBERS = tuple(f.name for f in fields(ModelShape) if f.name != "tie_word_embeddings")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the machine costs and accepts. Times are virtual ms, except ``sleep_s``: real seconds a run.

    Costs. Without a ``device`` a forward over t positions takes max(``tau0_ms``, t · ``token_ms``): flat while
    memory-bound, then linear; a proposal ``draft_ms`` and a prompt's token ``prefill_ms``. With one (a name of
    ``devices.DEVICES``) and the target's ``shape``, ``roofline`` says what a forward takes, by rows, width, context
    and ``dtype``, and what drafting takes, draft models by their ``shapes``; ``draft_ms.NAME`` overrules it.
    ``overhead_ms`` comes on top.

    Acceptance. The draft stands at place t of an output with probability α_t = ``alpha`` ± up to ``alpha_spread`` by
    prompt + ``alpha_trend`` · t/100. Proposal i of a block is accepted with α_t · ``alpha_decay``^i: at a decay of 1
    what is accepted follows from the places alone, and playing speculation over plain text foretells it; below 1 that
    forecast promises too much, as it does for real heads, whose guesses worsen down the block. As in prompt lookup, the
    draft has nothing to say to a place with probability ``miss``, and where it has, to ``match_tokens`` places in a
    row: proposals reach as far as the next miss. A text ends with probability ``eos_rate`` at each token.

    Noise. ``noise`` is the lognormal σ of each iteration, ``block_noise`` that of a factor of a whole run,
    ``shared_noise`` that of one shared by ``shared_runs`` runs in a row. The log of the machine's time changes by
    ``trend`` from run to run, and by a random step of σ ``drift``: other load, or heat. With probability ``tail`` an
    iteration hiccups (``pace``).

    Faults begin after ``fail_after`` good runs with the draft; ``wrong_text`` spoils the last token. ``tie_margin`` is
    what every choice is said to have been won by.
    """

    device: str = ""
    shape: ModelShape | None = None
    dtype: DType = "bfloat16"
    tau0_ms: float = 10.0
    token_ms: float = 0.25
    draft_ms: float = 0.5
    overhead_ms: float = 0.1
    prefill_ms: float = 0.05
    alpha: float = 0.7
    alpha_decay: float = 1.0
    alpha_spread: float = 0.1
    alpha_trend: float = 0.0
    miss: float = 0.0
    match_tokens: int = 5
    noise: float = 0.02
    block_noise: float = 0.0
    shared_noise: float = 0.0
    shared_runs: int = 8
    drift: float = 0.0
    trend: float = 0.0
    tail: float = 0.0
    eos_rate: float = 0.0
    tie_margin: float = 1.0
    max_context: int = 4096
    draft_bytes: int = 1 << 20
    seed: int = 0
    sleep_s: float = 0.0
    fail_after: int = 0
    by_draft: Mapping[str, float] = field(default_factory=dict)
    """``alpha.NAME``, ``draft_ms.NAME``, ``miss.NAME`` → value."""
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    """The shapes of draft models, by name."""
    fail: Mapping[str, Fault] = field(default_factory=dict)
    """A draft's name, ``off`` or ``target`` → fault."""

    def forward_ms(self, positions: float, *, rows: int = 1, context: float = 0.0) -> float:
        """One forward of the target over so many positions of all rows, after ``context`` tokens a row (a mean)."""
        roof = self._roof
        if roof is None:
            return max(self.tau0_ms, self.token_ms * positions)
        device, shape = roof
        return roofline.forward_ms(shape, device, self.dtype, rows=rows, width=positions / rows, context=context)

    def drafting_ms(self, draft: Draft, gamma: int, *, rows: int = 1, context: float = 0.0) -> float:
        """Proposing ``gamma`` tokens in each of ``rows`` rows."""
        roof, own = self._roof, self.shapes.get(draft.name)
        if roof is None or f"draft_ms.{draft.name}" in self.by_draft or (isinstance(draft, DraftModel) and own is None):
            return gamma * self.of("draft_ms", draft)
        device, shape = roof
        return roofline.drafting_ms(draft, gamma, shape, own, device, self.dtype, rows=rows, context=context)

    def prompt_ms(self, tokens: int) -> float:
        """Reading a prompt of so many tokens."""
        return self.prefill_ms * tokens if self._roof is None else self.forward_ms(tokens)

    def of(self, key: Literal["alpha", "draft_ms", "miss"], draft: Draft) -> float:
        """``key`` for ``draft``: its own value where it has one."""
        return self.by_draft.get(f"{key}.{draft.name}", cast(float, getattr(self, key)))

    @property
    def packed(self) -> bool:
        """Whether rows of different width are laid end to end, so that those that propose less cost less."""
        return self._roof is not None and self._roof[0].packed

    @property
    def _roof(self) -> tuple[Device, ModelShape] | None:
        return (DEVICES[self.device], self.shape) if self.device and self.shape else None


def machine_from(source: str, machine: Machine) -> Machine:
    """``machine`` changed as a source like ``simulated:?alpha=0.8&tau0_ms=10`` says; other sources change nothing.

    The keys are the fields of ``Machine``; ``alpha.NAME``, ``draft_ms.NAME`` and ``miss.NAME`` hold for one draft;
    ``device=h100&shape=36x4096x12288x32x8x128x151936`` draws a roofline, ``shape.NAME`` for a draft model
    (``shape_text`` writes them); ``fail.NAME=KIND`` makes runs with it fail (``fail.off``: plain decoding;
    ``fail.target``: opening). Raises InputError for a key or value unknown.
    """
    if not source.startswith(SCHEME):
        return machine
    kinds = {f.name: type(getattr(machine, f.name)) for f in fields(Machine) if f.name not in _NOT_PLAIN}
    changes: dict[str, object] = {}
    by_draft, shapes, fail = dict(machine.by_draft), dict(machine.shapes), dict(machine.fail)
    for key, value in parse_qsl(source.removeprefix(SCHEME).removeprefix("?"), keep_blank_values=True):
        head, _, name = key.partition(".")
        try:
            if head == "fail" and name and value in get_args(Fault):
                fail[name] = cast(Fault, value)
            elif head in {"alpha", "draft_ms", "miss"} and name:
                by_draft[key] = float(value)
            elif head == "shape" and name:
                shapes[name] = _shape(value)
            elif key == "shape":
                changes[key] = _shape(value)
            elif key == "device":
                changes[key] = DEVICES[value].name
            else:
                changes[key] = kinds[key](value)
        except (KeyError, ValueError):
            raise InputError(
                f"target source {source}: {key}={value} is not understood; keys are {', '.join(sorted(kinds))}, "
                f"device={'|'.join(DEVICES)}, shape=LAYERSxHIDDENxINTERMEDIATExHEADSxKV_HEADSxHEAD_DIMxVOCABULARY"
                "[xEXPERTSxPER_TOKEN][xtied], alpha.NAME, draft_ms.NAME, miss.NAME, shape.NAME and "
                f"fail.NAME={'|'.join(get_args(Fault))}"
            ) from None
    made = replace(machine, **changes, by_draft=by_draft, shapes=shapes, fail=fail)  # type: ignore[arg-type]
    if made.device and made.shape is None:
        raise InputError(f"target source {source}: device={made.device} needs the target's shape beside it")
    return made


def shape_text(shape: ModelShape) -> str:
    """``shape`` as a source writes it: its numbers in order, experts where there are any, ``tied`` where it is."""
    numbers = [getattr(shape, name) for name in _NUMBERS]
    parts = [str(number) for number in (numbers if shape.num_experts else numbers[:-2])]
    return "x".join([*parts, "tied"] if shape.tie_word_embeddings else parts)


def _shape(text: str) -> ModelShape:
    """Raises ValueError for anything that ``shape_text`` would not write."""
    parts = text.split("x")
    tied = parts[-1] == "tied"
    numbers = [int(part) for part in (parts[:-1] if tied else parts)]
    if len(numbers) not in (len(_NUMBERS) - 2, len(_NUMBERS)) or min(numbers) < 1:
        raise ValueError(text)
    return ModelShape(**dict(zip(_NUMBERS, numbers, strict=False)), tie_word_embeddings=tied)


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
