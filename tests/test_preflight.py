"""Before a sweep starts anything, every model it names is looked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import load_settings
from pipeline.engines.decoding.sources import MAKE_A_HEAD
from pipeline.preflight import check
from pipeline.records.failure import InputError
from pipeline.records.settings import DraftChoice, SweepSettings
from pipeline.records.target import Draft, DraftModel, Eagle3, Medusa, Ngram


def settings(folder: Path, draft: Draft) -> SweepSettings:
    """The default sweep with a target that is there, and ``draft``."""
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    settings = load_settings([])
    (choice,) = settings.targets
    target = replace(choice.target, source=str(folder))
    return replace(settings, targets=(replace(choice, target=target, drafts=(DraftChoice(draft=draft, gammas=(2,)),)),))


@pytest.mark.parametrize("config", ['{"vocab_size": 100}', '{"text_config": {"vocab_size": 100}}'])
def test_a_stop_id_that_is_no_token_is_refused_before_a_model_is_loaded(tmp_path: Path, config: str) -> None:
    one = settings(tmp_path, Ngram(name="ngram"))
    (tmp_path / "config.json").write_text(config)

    def stopping(token: int) -> SweepSettings:
        return replace(one, workloads=(*one.workloads[1:], replace(one.workloads[0], stop_token_ids=(0, token))))

    check(stopping(99))
    with pytest.raises(InputError) as raised:
        check(stopping(100))
    wanted = "workloads.code_edit.stop_token_ids: 100 is no token of target smollm2; allowed are 0 to 99"
    assert str(raised.value) == wanted


def test_a_stop_string_that_is_a_special_token_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    one = settings(tmp_path, Ngram(name="ngram"))
    special = {"content": "<|im_end|>", "id": 2, "special": True}
    spoken = {"content": "<tool>", "id": 3, "special": False}

    def stopping(*stops: str, **target: object) -> SweepSettings:
        (choice,) = one.targets
        workloads = (replace(one.workloads[0], stop=stops), *one.workloads[1:])
        changed = replace(choice, target=replace(choice.target, **target))  # type: ignore[arg-type]
        return replace(one, targets=(changed,), workloads=workloads)

    for content in (None, "{", "[]", '{"added_tokens": [{"id": 1}]}'):  # what cannot be told is not refused here
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        check(stopping("<|im_end|>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [special, spoken]}))
    check(stopping("<tool>", "end of <|im_end|>"))
    check(stopping("<|im_end|>", tokenizer="elsewhere"))
    with pytest.raises(InputError) as raised:
        check(stopping("\n", "<|im_end|>"))
    assert str(raised.value) == (
        "workloads.code_edit.stop: '<|im_end|>' is a special token of target smollm2, which has no text; "
        "give its id 2 in stop_token_ids"
    )


def test_what_prompts_are_lengthened_with_counts_as_content(tmp_path: Path) -> None:
    one = settings(tmp_path, Ngram(name="ngram"))
    path = tmp_path / "book.txt"

    def content(**changes: object) -> Mapping[str, str]:
        long = replace(one.workloads[0], context_tokens=99, **changes)  # type: ignore[arg-type]
        return check(replace(one, workloads=(long,))).content

    bundled = content()
    assert bundled.keys() - check(one).content.keys() == {"workloads.code_edit.context"}
    with pytest.raises(InputError, match=r"book\.txt: cannot be read \(No such file or .*; workload code_edit"):
        content(context_path=str(path))
    path.write_text("one")
    first = content(context_path=str(path))
    path.write_text("two")
    hashes = {each["workloads.code_edit.context"] for each in (bundled, first, content(context_path=str(path)))}
    assert len(hashes) == 3


@pytest.mark.parametrize("record", [DraftModel, Medusa, Eagle3])
def test_a_draft_that_is_not_there_is_named(tmp_path: Path, record: type[DraftModel | Medusa | Eagle3]) -> None:
    missing = str(tmp_path / "no" / "such" / "model")
    with pytest.raises(InputError) as raised:
        check(settings(tmp_path, record(name="small", source=missing)))
    remedy = MAKE_A_HEAD if record is Eagle3 else ""
    assert str(raised.value) == f"targets.smollm2.drafts.small.source={missing}: no such file or folder{remedy}"
    check(settings(tmp_path, record(name="small", source=str(tmp_path))))
