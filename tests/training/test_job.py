"""The whole job on tiny models: a head that the engine loads, made once, and gone on with after any end."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_chat import FAMILIES, tiny_settings

from pipeline.engines.contract import Limits
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Eagle3
from pipeline.training.job import read_report, train_head


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.said.append(f"warning: {text}")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_comes_out_that_the_engine_loads(tmp_path: Path, family: str) -> None:
    settings = tiny_settings(tmp_path, family)
    outcome = train_head(settings, Lines(), lambda: False)
    assert outcome.report is not None
    assert outcome.report == read_report(outcome.folder)
    (result,) = outcome.report.results
    assert len(result.prompts) == 2
    assert not set(result.prompts) & set(outcome.report.watched)
    engine = DecodingEngine(EngineSettings(device="cpu"))
    engine.open(settings.target, [Eagle3(name="head", source=str(outcome.folder))], Limits(concurrency=1, max_gamma=2))
