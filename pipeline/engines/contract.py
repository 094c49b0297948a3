"""What every engine offers: open a target with its drafts, run requests, close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.records.cell import Sampling
from pipeline.records.target import Draft, Scalar, Target
from pipeline.records.trace import Trace

Foretold = Literal["text", "score", "probe"]
"""How a draft's acceptance is foretold: from the committed text alone, by ``Engine.score``, or by a short run."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the engine must hold: slots, the widest proposal, the longest row (None: the model's own limit)."""

    concurrency: int
    max_gamma: int
    context_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt to decode.

    ``seed`` drives the counter random numbers: with the same seed, tokens and sampling the output is the same in
    any slot beside any neighbours. ``counted`` False marks a filler, which keeps a slot busy until the run's last
    counted request has finished and is then abandoned. ``prompt_id`` groups the seeds of one prompt.

    The output ends with the first token that is an end-of-text token of the target (unless ``ignore_eos``), one of
    ``stop_token_ids``, or the one with which the decoded output contains one of ``stop`` (special tokens have no text);
    the prompt does not count. ``ignore_eos`` switches neither kind of stop off.
    """

    request_id: str
    prompt_id: str
    tokens: tuple[int, ...]
    max_new_tokens: int
    seed: int
    counted: bool = True
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    arrival_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A request and the text that plain decoding gave it, as ``RequestTrace.output`` has it."""

    request: Request
    output: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """γ by number of active requests: ``steps`` are (most active requests, γ), ascending; above the last, 0."""

    steps: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        bounds = [most for most, _ in self.steps]
        if bounds != sorted(set(bounds)) or any(most < 1 or gamma < 0 for most, gamma in self.steps):
            raise ValueError(f"schedule steps must ascend in active requests >= 1 with gamma >= 0: {self.steps}")

    @classmethod
    def constant(cls, gamma: int) -> Schedule:
        """The same γ at any load; 0 is plain decoding."""
        return cls(((2**31 - 1, gamma),))

    def gamma(self, active: int) -> int:
        """γ for an iteration with ``active`` rows."""
        return next((gamma for most, gamma in self.steps if active <= most), 0)

    @property
    def max_gamma(self) -> int:
        return max((gamma for _, gamma in self.steps), default=0)


OFF = Schedule()
"""Plain decoding."""


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What is loaded and on what it runs; ``device_id`` is the accelerator itself, not its kind.

    ``graphs``: forwards of the target are replayed CUDA graphs. That a draft's cannot be is no fact of the engine: it
    would make strangers of measurements of other drafts. ``end_to_end``: a verification runs only proposals that were
    made; else every row is padded to the widest.
    """

    engine: str
    device: str
    accelerator: str
    threads: int
    dtype: str
    torch: str
    transformers: str
    driver: str
    target_revision: str
    vocabulary: int
    max_context: int
    device_id: str = ""
    graphs: bool = False
    end_to_end: bool = False


@dataclass(frozen=True, kw_only=True)
class DraftFacts:
    """``kv_bytes`` is what its cache took in the last run, 0 before any."""

    revision: str
    weight_bytes: int
    kv_bytes: int


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that rendering a prompt needs."""

    chat_template: str | None
    bos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        chat_template: str | None = ...,
        tokenize: bool = ...,
        add_generation_prompt: bool = ...,
        **template_args: Scalar,
    ) -> str: ...


class Engine(Protocol):
    """One target on one device. Not thread-safe: one call at a time."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def facts(self) -> EngineFacts: ...

    def draft_facts(self, draft: Draft) -> DraftFacts: ...

    def open(self, target: Target, drafts: Sequence[Draft], limits: Limits) -> None:
        """Load what is not loaded yet; another target replaces the old one.

        Raises InputError, before loading where it can be known, for what cannot be found or decoded losslessly.
        """

    def run(self, arrivals: Sequence[Request], sampling: Sampling, draft: Draft | None, schedule: Schedule) -> Trace:
        """Decode ``arrivals`` in order, at most ``limits.concurrency`` at once, until every counted one has finished.

        ``draft`` None needs a schedule that never speculates. Raises InputError for a request that cannot fit.
        """

    def replays(self, draft: Draft) -> Foretold:
        """How ``draft``'s acceptance is foretold from what plain decoding wrote.

        ``text``: its proposals follow from the text (n-gram). ``score``: they depend on all before them alone, so that
        ``score`` tells how likely each token would stand. ``probe``: they depend on where the block began (heads).
        """

    def score(self, passages: Sequence[Passage], sampling: Sampling, draft: Draft) -> tuple[tuple[float, ...], ...]:
        """How likely each output token x of a passage would stand if ``draft`` proposed there, given all before it.

        min(1, q(x)/p(x)), both distributions transformed as ``sampling`` says; where proposals are not drawn, 1 or 0:
        whether x is the draft's likeliest token. One teacher-forced pass of draft and, where proposals are drawn, of
        the target. Raises ValueError for a draft that ``replays`` says is foretold otherwise.
        """

    def time_widths(
        self,
        arrivals: Sequence[Request],
        sampling: Sampling,
        draft: Draft | None,
        gammas: Sequence[int],
        proposing: Sequence[int] | None = None,
    ) -> Trace:
        """As ``run``, but iteration i proposes γ = gammas[i mod len(gammas)] in every row: for its times alone.

        ``draft`` None proposes arbitrary tokens, γ of them in every row with room, or in the first
        ``proposing[i mod len(gammas)]`` rows alone: what a verification of that width costs whoever drafted. The
        trace's ``Iteration.gamma`` says which γ was due. Raises ValueError for ``proposing`` where rows are padded to
        the widest, so that it would not matter.
        """

    def tie_margin(self, request: Request, output: Sequence[int], sampling: Sampling) -> float:
        """How near to a tie the choice after prompt + ``output`` was.

        Greedy: the gap between the two greatest fp32 logits. Sampled: the distance of this request's draw at that
        position from the nearest edge of the cumulative distribution, or of a filter's threshold.
        """

    def close(self) -> None: ...
