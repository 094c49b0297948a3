"""A team's own configuration folder beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusing import refusal

from pipeline.config import load_settings
from pipeline.records.cell import Sampling, Workload
from pipeline.records.target import DraftModel, Target


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
        assert settings.workloads[0] == Workload(name="tickets", format="chat", path="tickets.jsonl", output_tokens=24)

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
