"""The losslessness benchmark passes on the engine as it is, and says so when it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.benchmark import main
from pipeline.benchmarks import lossless
from pipeline.benchmarks.lossless import (
    CONCURRENCY,
    DRAWN,
    GREEDY,
    ONE_HOT,
    PENALIZED_DRAFTS,
    PENALIZED_GREEDY,
    SAMPLINGS,
    Options,
    run,
)
from pipeline.benchmarks.mutants import MUTANTS, PENALIZED, broken
from pipeline.benchmarks.tiny_writer import Arm
from pipeline.records.failure import InputError

T1 = SAMPLINGS[0]


def rows(only: str, samples: int = 1500, texts: int = 100) -> dict[str, bool | None]:
    report = run(Options(samples=samples, texts=texts, only=only, processes=1), lambda text: None)
    return {row.metric: row.holds for row in report.rows}


def test_the_engine_as_it_is_passes() -> None:
    assert rows("· t1 · C6", samples=300) == {Arm(draft, T1, 6).name: True for draft in (None, *DRAWN, *ONE_HOT)}


def test_greedy_text_is_plain_text() -> None:
    assert rows("greedy · C6") == {Arm(draft, GREEDY, 6).name: True for draft in (None, *DRAWN, *ONE_HOT)}


@pytest.mark.slow
def test_penalized_text_is_right_too() -> None:
    found = rows("penalized · C6", samples=400)
    wanted = [Arm(draft, s, 6).name for draft in PENALIZED_DRAFTS for s in (PENALIZED_GREEDY, PENALIZED)]
    assert found == dict.fromkeys(wanted, True)


@pytest.mark.slow
def test_every_method_is_there_with_every_sampling_concurrency_and_draft_sampling() -> None:
    found = rows("", samples=60, texts=6)
    assert len(found) == (1 + 4 + 5) * 5 * 2 + (1 + 4 + 2) * 2 + len(MUTANTS)
    assert {"ngram", "draft_model", "early_exit", "medusa", "eagle3"} <= {name.split(" · ")[0] for name in found}
    assert CONCURRENCY == (1, 6)


@pytest.mark.parametrize("mutant", [MUTANTS[0], *(pytest.param(m, marks=pytest.mark.slow) for m in MUTANTS[1:])])
def test_a_mutant_is_caught(mutant: str) -> None:
    assert rows(mutant) == {mutant: True}


@pytest.mark.slow
def test_only_the_last_tokens_show_what_is_wrong_after_a_full_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[-1]
    assert "after a full accept" in mutant
    monkeypatch.setattr(lossless, "PLACES", lossless.PLACES[:-1])
    assert rows(mutant) == {mutant: False}


def test_a_wrong_engine_does_not_pass() -> None:
    with broken("final token from p after a rejection", T1):
        assert rows("medusa · t1 · C6") == {"medusa · t1 · C6": False}


def test_wrong_text_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One-hot proposals that are all accepted, right or not."""
    from pipeline.engines.decoding import accept

    monkeypatch.setattr(accept, "_prefix_length", lambda ok, dlen: dlen)
    assert rows("ngram · greedy · C1") == {"ngram · greedy · C1": False}


@pytest.mark.slow
def test_processes_of_their_own_find_the_same(tmp_path: Path) -> None:
    written = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        options = ["samples=300", "texts=40", "only=medusa · t1 · C6", f"processes={processes}", f"output_dir={out}"]
        assert main(["lossless", *options]) == 0
        written.append(json.loads((out / "lossless.json").read_text()))
    assert written[0]["rows"] == written[1]["rows"]


def test_a_filter_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="only=mdusa: no row"):
        rows("mdusa")
