"""Stop strings end ids, counts, text and finish at one token: in any slot, block and draft, and at the first token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import GREEDY, WARM, assert_counts_hold, tiny_llama
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.engines.contract import OFF, Limits, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.measurement.gates import check_trace
from pipeline.records.cell import Sampling
from pipeline.records.failure import InputError
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, DraftModel, EarlyExit, Ngram, Target
from pipeline.records.trace import RequestTrace, Trace

VOCABULARY = 261
SPECIAL, EOS = 258, 259  # 260 pads the embedding table
GAMMA = 4
Run = Callable[..., Trace]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 single bytes, two words of several, two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {sign: i for i, sign in enumerate(alphabet)} | {"Ġa": 256, "bc": 257}
    tokenizer = Tokenizer(models.BPE(words, [("Ġ", "a"), ("b", "c")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|eos|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|eos|>")


@pytest.fixture(scope="module")
def drafts() -> dict[str, Draft | None]:
    return {"off": None, "ngram": Ngram(name="ngram"), "exit": EarlyExit(name="exit", layers=3)}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, drafts: dict[str, Draft | None]) -> Iterator[DecodingEngine]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("target", "noisy", "same")}
    for name, folder in folders.items():
        _write(folder, noise=0.01 if name == "noisy" else 0.0)
    drafts |= {name: DraftModel(name=name, source=str(folders[name])) for name in ("noisy", "same")}
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    engine.open(
        Target(name="tiny", source=str(folders["target"]), dtype="float32", chat_template="plain"),
        [draft for draft in drafts.values() if draft],
        Limits(concurrency=1, max_gamma=GAMMA),
    )
    yield engine
    engine.close()


@pytest.fixture
def run(engine: DecodingEngine, drafts: dict[str, Draft | None]) -> Run:
    def go(requests: list[Request], name: str = "off", sampling: Sampling = GREEDY, concurrency: int = 1) -> Trace:
        schedule = Schedule.constant(GAMMA) if name != "off" else OFF
        engine.open(engine._opened().spec, (), Limits(concurrency=concurrency, max_gamma=GAMMA))
        trace = engine.run(requests, sampling, drafts[name], schedule)
        check_trace(trace, requests, schedule)
        assert_counts_hold(trace, requests)
        return trace

    return go


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("name", ["off", "ngram", "exit", "noisy", "same"])
def test_a_text_is_the_unstopped_one_up_to_the_token_that_completes_a_stop_string(
    engine: DecodingEngine, run: Run, name: str, concurrency: int, sampling: Sampling
) -> None:
    """At every place of the text in turn, so at every place of a block and in the first token."""
    whole = {row.request_id: row for row in run(requests(), name, sampling, concurrency).requests}
    finished = {"stop": 0, "length": 0}
    inside = first = 0
    for place in (0, 5, 11, 16):
        asked = [with_stop(engine, request, whole[request.request_id], place) for request in requests()]
        asked[0] = replace(asked[0], stop=())  # in the same batch as rows with stop strings
        trace = run(asked, name, sampling, concurrency)
        for request, row in zip(asked, trace.requests, strict=True):
            full = whole[row.request_id].output
            end = by_definition(engine, full, request.stop)
            assert row.output == full[:end]
            assert row.finish == ("length" if end is None else "stop")
            assert row.text == (text(engine, row.output).partition(row.stop_string or "\0")[0] if request.stop else "")
            assert row.stop_string == ("" if end is None else request.stop[0])
            finished[row.finish] += 1
            first += end == 1
        inside += sum(it.stopped for it in trace.iterations)
    assert min(finished.values()) > 0 < first
    if name == "same":
        assert inside, "some stops are in the middle of accepted blocks"


def test_several_stop_strings_end_at_the_first_that_is_complete(engine: DecodingEngine, run: Run) -> None:
    (whole,) = run(requests()[:1]).requests
    written = text(engine, whole.output)
    late, early = clean(written, 25, 3), clean(written, 5, 3)
    assert written.find(early) < written.find(late)
    (row,) = run([replace(requests()[0], stop=("never", late, early))]).requests
    assert row.stop_string == early
    assert row.text == written[: written.find(early)]


def test_a_stop_string_of_the_prompt_ends_nothing(engine: DecodingEngine, run: Run) -> None:
    request = requests()[3]
    (whole,) = run([request]).requests
    prompt, written = text(engine, request.tokens), text(engine, whole.output)
    stop = clean(prompt, 0, 3)
    assert stop not in written
    (row,) = run([replace(request, stop=(stop,))]).requests
    assert (row.output, row.finish, row.stop_string) == (whole.output, "length", "")
    assert row.text == written


def test_an_ignored_eos_leaves_stop_strings_and_an_earlier_eos_wins(engine: DecodingEngine, run: Run) -> None:
    request = requests()[0]
    (whole,) = run([request]).requests
    at = len(whole.output) // 2
    stop = clean(text(engine, whole.output), 8, 2)
    (row,) = run([replace(request, stop=(stop,))]).requests
    assert request.ignore_eos
    assert row.finish == "stop"
    (row,) = run([replace(request, stop=("never",), stop_token_ids=(whole.output[at],))]).requests
    assert (row.finish, row.stop_string) == ("stop", "")
    assert row.text == text(engine, row.output[:-1]), "a stop token has no part in the text"


@pytest.mark.parametrize("eos", [(EOS,), (7, EOS, 9), (SPECIAL, EOS)])
def test_every_end_of_text_token_of_a_generation_config_ends_a_text(tmp_path: Path, eos: tuple[int, ...]) -> None:
    _write(tmp_path, eos=eos)
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    target = Target(name="tiny", source=str(tmp_path), dtype="float32", chat_template="plain")
    engine.open(target, (), Limits(concurrency=4, max_gamma=GAMMA))
    assert set(engine._opened().eos) == set(eos)
    ends = set()
    for seed in range(60):
        asked = [replace(request, seed=seed + request.seed, ignore_eos=False) for request in requests(200)]
        for row in engine.run(asked, Sampling(name="hot", temperature=5.0), None, OFF).requests:
            assert not set(eos) & set(row.output[:-1])
            assert (row.output[-1] in eos) == (row.finish == "eos")
            ends |= {row.output[-1]} & set(eos)
        if ends == set(eos):
            return
    pytest.fail(f"only {ends} of {eos} ended a text")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop": ("",)}, r"request r0: stop string '' is empty"),
        ({"stop": ("a\ufffd",)}, r"holds U\+FFFD"),
        ({"stop": ("<|end|>",)}, r"'<\|end\|>' is a special token of tiny, which has no text; give its id 258"),
        ({"stop_token_ids": (VOCABULARY,)}, "request r0: stop token id 261, allowed are 0 to 260"),
        ({"stop_token_ids": (-1,)}, "stop token id -1"),
    ],
)
def test_what_could_never_stop_a_text_is_refused(run: Run, change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run([replace(requests()[0], **change)])  # type: ignore[arg-type]


def test_rows_without_stop_strings_are_never_decoded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise AssertionError("decoded")

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", fail)
    assert all(row.text == "" for row in run(requests(), "ngram", GREEDY, 3).requests)


def requests(tokens: int = 40) -> list[Request]:
    """Prompts of bytes; some repeat themselves, so that prompt lookup finds something."""
    draws = torch.Generator().manual_seed(5)
    found = []
    for i in range(5):
        prompt = torch.randint(0, 258, (5 + 4 * i,), generator=draws).tolist() * (1 + i % 2)
        found.append(
            Request(
                request_id=f"r{i}",
                prompt_id=f"p{i}",
                tokens=tuple(prompt),
                max_new_tokens=tokens - 3 * i if tokens < 100 else tokens,
                seed=i,
                ignore_eos=True,
            )
        )
    return found


def with_stop(engine: DecodingEngine, request: Request, whole: RequestTrace, place: int) -> Request:
    """``request`` with one to three signs of its own text as a stop string, or with one that it never writes."""
    written = text(engine, whole.output)
    stop = written[place : place + 1 + place % 3]
    return replace(request, stop=("never",) if not stop or "\ufffd" in stop else (stop,))


def clean(written: str, start: int, length: int) -> str:
    """The first ``length`` whole characters on end at or after ``start``."""
    pieces = (written[at : at + length] for at in range(start, len(written) - length + 1))
    return next(piece for piece in pieces if "\ufffd" not in piece)


def by_definition(engine: DecodingEngine, output: tuple[int, ...], stops: tuple[str, ...]) -> int | None:
    for k in range(1, len(output) + 1):
        if any(stop in text(engine, output[:k]) for stop in stops):
            return k
    return None


def text(engine: DecodingEngine, ids: tuple[int, ...]) -> str:
    tokenizer = engine._opened().source.tokenizer
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _write(folder: Path, noise: float = 0.0, eos: tuple[int, ...] = (EOS,)) -> None:
    model = tiny_llama(vocabulary=VOCABULARY, noise=noise)
    model.generation_config.eos_token_id = list(eos)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
