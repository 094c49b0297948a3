"""``jobs.benchmark gpu``: what only a GPU can show, on a bare machine and in a few minutes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import torch
import transformers
from transformers import PretrainedConfig

from pipeline.benchmarks.conditions import conditions, load
from pipeline.benchmarks.gpu.budget import Block, Progress, run_blocks
from pipeline.benchmarks.gpu.decoder import Decoder
from pipeline.benchmarks.gpu.distribution import distributions
from pipeline.benchmarks.gpu.shapes import MIXTURE_LAYERS, Scale, build, fitting_layers, scale
from pipeline.benchmarks.gpu.speed import Bandwidth, Speed, crossover, measure_bandwidth
from pipeline.benchmarks.gpu.texts import equal_texts, text_columns
from pipeline.benchmarks.rows import Report, Row
from pipeline.engines.contract import EngineFacts
from pipeline.engines.decoding.engine import VERSION
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.hardware import accelerator_name, driver_version
from pipeline.engines.decoding.proposers.contract import Proposer
from pipeline.engines.decoding.proposers.ngram import NgramProposer
from pipeline.records.failure import InputError
from pipeline.records.target import Ngram

SCALES = ("full", "tiny")
MIXTURE_SLOTS = 8


@dataclass(frozen=True, kw_only=True)
class Options:
    """``minutes``: nothing is begun that would not end in them. ``scale`` tiny, ``device`` cpu: to test it."""

    minutes: int = 8
    device: str = "cuda"
    scale: str = "full"


def run(options: Options, say: Callable[[str], None], keep: Callable[[Report], None]) -> Report:
    """``keep`` is given the report so far after each figure. Raises InputError where there is no GPU."""
    start = time.monotonic()
    device = _device(options)
    if options.scale not in SCALES:
        raise InputError(f"scale={options.scale}: allowed are {', '.join(SCALES)}")
    bench = _Bench(scale(options.scale), device, say)
    load_before = load()

    def report(progress: Progress) -> Report:
        notes = [*bench.notes, *(f"left out: {one}" for one in progress.left_out)]
        return Report(
            benchmark="gpu",
            settings=asdict(options) | {"minutes_taken": round((time.monotonic() - start) / 60, 2)},
            conditions=conditions(bench.facts(), load_before),
            rows=tuple(progress.rows),
            notes=tuple(notes),
            failures=tuple(progress.broken),
        )

    return report(run_blocks(bench.blocks(), 60.0 * options.minutes, lambda done: keep(report(done)), say))


def _device(options: Options) -> torch.device:
    try:
        device = torch.device(options.device)
    except RuntimeError as error:
        raise InputError(f"device={options.device}: allowed are cuda, cuda:N, cpu") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        why = "finds no GPU" if torch.version.cuda else "is a build without CUDA"
        raise InputError(f"device={options.device}: PyTorch {torch.__version__} {why}; device=cpu scale=tiny tests it")
    return device


class _Bench:
    """The models, loaded when a block first needs them, and the blocks in order of what matters most."""

    def __init__(self, scale: Scale, device: torch.device, say: Callable[[str], None]) -> None:
        self._scale = scale
        self._device = device
        self._say = say
        self._decoder = Decoder(device)
        self._bandwidth: Bandwidth | None = None
        self._target: CachedModel | None = None
        self._draft: CachedModel | None = None
        self._verified: dict[tuple[int, int], float] = {}
        self.notes: list[str] = []
        self._graphs = device.type == "cuda"

    def blocks(self) -> list[Block]:
        # Seconds are guesses, made without a GPU: half of what seemed likely, so that little is left out.
        slots = self._scale.concurrency
        first, rest = slots[0], slots[1:]
        return [
            Block("bandwidth", 5, self._measure_bandwidth),
            Block("floor", 20, self._floor),
            Block(f"verification at C = {first}", 15, lambda: self._verification(first)),
            Block("texts", 20, self._texts),
            *(
                Block(f"verification at C = {c}", 10 + c / 4, lambda c=c: self._verification(c))  # type: ignore[misc]
                for c in rest
            ),
            Block("crossover", 0, self._crossover),
            Block("draft steps", 15, self._draft_steps),
            Block("distribution", 20, self._distribution),
            Block("texts in fp32", 15, self._exact_texts),
            Block("mixture", 40, self._mixture),
        ]

    def facts(self) -> EngineFacts:
        cuda = self._device.type == "cuda"
        config = self._scale.target
        return EngineFacts(
            engine=f"decoding {VERSION}",
            device=self._device.type,
            accelerator=accelerator_name(self._device),
            threads=torch.get_num_threads(),
            dtype=str(self._scale.dtype).removeprefix("torch."),
            torch=torch.__version__,
            transformers=transformers.__version__,
            driver=driver_version(self._device),
            target_revision="random weights",
            vocabulary=config.vocab_size,
            max_context=config.max_position_embeddings,
            device_id=str(torch.cuda.get_device_properties(self._device).uuid) if cuda else "",
            graphs=self._graphs,
        )

    def _measure_bandwidth(self) -> Iterator[Row]:
        self._bandwidth, row = measure_bandwidth(self._scale, self._device)
        yield row

    def _floor(self) -> Iterator[Row]:
        if self._bandwidth is None:
            raise RuntimeError("bandwidth was not measured")
        yield from Speed(self._decoder, self._scale, self._loaded_target()).floor(self._bandwidth)
        self._note_failure("target", self._loaded_target())

    def _verification(self, slots: int) -> Iterator[Row]:
        def found(slots: int, gamma: int, share: float) -> None:
            self._verified[slots, gamma] = share

        yield from Speed(self._decoder, self._scale, self._loaded_target()).verification(slots, found)

    def _crossover(self) -> Iterator[Row]:
        row, meaning = crossover(self._verified)
        self.notes.append(meaning)
        if row is not None:
            yield row

    def _draft_steps(self) -> Iterator[Row]:
        speed, draft = Speed(self._decoder, self._scale, self._loaded_target()), self._loaded_draft()
        for slots in self._scale.concurrency:
            yield from speed.draft_step(draft, slots)
        self._note_failure("draft", draft)

    def _texts(self) -> Iterator[Row]:
        target, draft = self._loaded_target(), self._loaded_draft()
        yield from self._compared_texts(target, draft, "low_precision")

    def _compared_texts(self, target: CachedModel, draft: CachedModel | None, kind: str) -> Iterator[Row]:
        """By drafts that are always right, sometimes and never: the target itself, an n-gram, a random model."""
        decoder, scale = self._decoder, self._scale
        slots, columns = scale.text_slots, text_columns(scale)
        same = decoder.cached(target.model)
        proposers: dict[str, Proposer] = {
            "same": decoder.drafting(same, target, slots, columns),
            "ngram": NgramProposer(Ngram(name="ngram", min_n=1), self._device),
        }
        if draft is not None:
            proposers["draft"] = decoder.drafting(draft, target, slots, columns)
        yield from equal_texts(decoder, scale, target, proposers, kind)

    def _exact_texts(self) -> Iterator[Row]:
        self._free()
        model = build(self._scale.exact, torch.float32, self._device)
        target = self._decoder.cached(model)
        layers = self._scale.exact.num_hidden_layers
        self.notes.append(f"texts in fp32: {layers} layers of the target's shape")
        yield from self._compared_texts(target, None, "fp32")

    def _distribution(self) -> Iterator[Row]:
        yield from distributions(self._decoder, self._scale.samples)

    def _mixture(self) -> Iterator[Row]:
        self._free()
        config = self._scale.mixture
        layers = fitting_layers(config, self._device)
        if layers < config.num_hidden_layers:
            self.notes.append(f"mixture: {layers} of {MIXTURE_LAYERS} layers, as many as memory holds")
            config.num_hidden_layers = layers
        target = self._decoder.cached(self._build("mixture", config))
        speed = Speed(self._decoder, replace(self._scale, repeats=min(2, self._scale.repeats)), target, "mixture_")
        if self._bandwidth is not None:
            yield from speed.floor(self._bandwidth)
        self._note_failure("mixture", target)
        for slots in (1, min(MIXTURE_SLOTS, max(self._scale.concurrency))):
            yield from speed.verification(slots)

    def _loaded_target(self) -> CachedModel:
        if self._target is None:
            self._target = self._decoder.cached(self._build("target", self._scale.target))
        return self._target

    def _loaded_draft(self) -> CachedModel:
        if self._draft is None:
            self._draft = self._decoder.cached(self._build("draft", self._scale.draft, seed=1))
        return self._draft

    def _build(self, what: str, config: PretrainedConfig, seed: int = 0) -> transformers.PreTrainedModel:
        self._say(f"making the {what}: {config.num_hidden_layers} layers of {config.hidden_size}")
        return build(config, self._scale.dtype, self._device, seed)

    def _free(self) -> None:
        self._target = self._draft = None
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _note_failure(self, what: str, model: CachedModel) -> None:
        if model.recordings is not None and model.recordings.failure:
            self._graphs = self._graphs and what != "target"
            self.notes.append(f"{what}: decoded without CUDA graphs: {model.recordings.failure}")
