"""Before a sweep starts anything, every model it names is looked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import load_settings
from pipeline.preflight import check
from pipeline.records.failure import InputError
from pipeline.records.settings import DraftChoice, SweepSettings
from pipeline.records.target import Draft, DraftModel, Eagle3, Medusa


def settings(folder: Path, draft: Draft) -> SweepSettings:
    """The default sweep with a target that is there, and ``draft``."""
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    settings = load_settings([])
    (choice,) = settings.targets
    target = replace(choice.target, source=str(folder))
    return replace(settings, targets=(replace(choice, target=target, drafts=(DraftChoice(draft=draft, gammas=(2,)),)),))


@pytest.mark.parametrize("record", [DraftModel, Medusa, Eagle3])
def test_a_draft_that_is_not_there_is_named(tmp_path: Path, record: type[DraftModel | Medusa | Eagle3]) -> None:
    missing = str(tmp_path / "no" / "such" / "model")
    with pytest.raises(InputError) as raised:
        check(settings(tmp_path, record(name="small", source=missing)))
    assert str(raised.value) == f"targets.smollm2.drafts.small.source={missing}: no such file or folder"
    check(settings(tmp_path, record(name="small", source=str(tmp_path))))
