"""What names a sweep: all that is measured, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import load_settings, sweep_id


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
            "concurrency=[4,1]",
            "workload=[chat,code_edit]",
        ],
    )
    def test_what_is_not_measured_does_not_count(self, override: str) -> None:
        assert sweep_id(load_settings([override])) == sweep_id(load_settings([]))

    def test_limits_count_once_for_under_them_no_search_is_cut_short(self) -> None:
        free, *held = (
            sweep_id(load_settings(limits))
            for limits in (
                [],
                ["constraints.tpot_ms_p99=50"],
                ["constraints.tpot_ms_p99=60", "constraints.speedup_e2e=1"],
            )
        )
        assert held[0] == held[1] != free

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
