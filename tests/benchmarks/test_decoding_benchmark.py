"""The decoding benchmark on a tiny target: its arms decode the same text, and its door writes what it found."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from jobs.benchmark import main
from pipeline.benchmarks import forwards, interleaved
from pipeline.benchmarks.decoding import WANTED
from pipeline.benchmarks.interleaved import interleave, timed
from pipeline.benchmarks.peer_transformers import TransformersPeer
from pipeline.benchmarks.peer_vllm import VllmPeer
from pipeline.benchmarks.rows import Row
from pipeline.engines.decoding.packing import PackedLinear

VOCABULARY = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama; every word of a prompt that is none of its 40 is w0."""
    path = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            initializer_range=0.3,
            eos_token_id=2,
        )
    ).save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(path)
    return path


@pytest.fixture
def spec_bench(tmp_path: Path) -> Path:
    """Eleven words or more a question, which differ by question."""
    path = tmp_path / "spec_bench.jsonl"
    lines = []
    for i, category in enumerate(["coding", "math_reasoning", "translation", "writing"] * 2):
        turn = " ".join(f"w{(7 * i + k * k) % VOCABULARY}" for k in range(14 + i))
        lines.append(json.dumps({"question_id": i, "category": category, "turns": [turn]}))
    path.write_text("\n".join(lines))
    return path


def test_the_door_measures_and_writes_rows_that_are_well_formed(folder: Path, spec_bench: Path, tmp_path: Path) -> None:
    arguments = [f"source={folder}", "chat_template=plain", f"spec_bench={spec_bench}", f"output_dir={tmp_path}/out"]
    assert main(["decoding", *arguments, "prompts=2", "tokens=6", "repeats=2", "threads=1"]) == 0

    written = json.loads((tmp_path / "out" / "decoding.json").read_text())
    rows = {row["metric"]: Row(**row) for row in written["rows"]}
    assert set(WANTED) | set(forwards.WANTED) <= set(rows)
    assert written["settings"]["tokens"] == 6
    assert written["conditions"]["threads"] == 1
    assert {"torch", "transformers", "python", "accelerator"} <= set(written["conditions"])
    for row in rows.values():
        assert len(fields(row)) == 11
        assert row.low <= (row.ratio if row.peer else row.ours) <= row.high
        assert (row.ratio is None) == (row.peer_value is None) == (row.peer == "")
    assert all(rows[f"plain_c{c}"].peer.startswith("transformers") for c in (1, 8))
    assert rows["ngram_c8"].holds is None, "its peer was not there"
    assert rows["text_plain_c1"].ours == rows["text_ngram_c1"].ours == 1.0
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["decoding.json", "decoding.md"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decodign"], "decodign: benchmarks are decoding"),
        ([], "benchmarks are decoding"),
        (["decoding", "tokns=8"], "tokns: unknown; allowed are"),
        (["decoding", "source=/nowhere"], "/nowhere"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, f"output_dir={tmp_path}"] if arguments else []) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_peer_with_packed_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="load it anew"):
        TransformersPeer(torch.nn.Sequential(PackedLinear(torch.nn.Linear(4, 4))))  # type: ignore[arg-type]


def test_arms_take_turns_and_their_order_turns_round() -> None:
    done: list[str] = []
    arms = {name: lambda unit, name=name: done.append(f"{name}{unit}") for name in ("a", "b")}
    passes = interleave(arms, [1, 2], 2, lambda text: None)
    assert done == ["a1", "b1", "b2", "a2", "b1", "a1", "a2", "b2"]
    assert all(len(arm) == 2 and all(p.seconds > 0 for p in arm) for arm in passes.values())


def test_work_that_was_starved_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time, one second of CPU in ten."""
    wall, cpu = iter([0.0, 10.0, 10.0, 12.0]), iter([0.0, 1.0, 1.0, 3.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(wall))
    monkeypatch.setattr("time.process_time", lambda: next(cpu))
    assert timed(lambda: "done") == (2.0, "done")


VLLM = """
import json, sys, time
tokens = json.loads(sys.argv[1])["tokens"]
reply = lambda texts: print(json.dumps({"texts": texts, "cpu_s": time.process_time(), "version": "9"}), flush=True)
reply([])
for line in sys.stdin:
    time.sleep(PAUSE)
    reply([[0] * tokens for _ in json.loads(line)])
"""


@pytest.mark.parametrize(("pause", "best"), [("0", "vLLM"), ("0.5", "transformers static batch")])
def test_plain_batches_are_held_against_the_better_of_two_peers(
    pause: str, best: str, folder: Path, spec_bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = tmp_path / "writer.py"
    writer.write_text(VLLM.replace("PAUSE", pause))
    monkeypatch.setattr(VllmPeer.__init__, "__kwdefaults__", VllmPeer.__init__.__kwdefaults__ | {"writer": writer})
    monkeypatch.setattr(interleaved, "TRIES", 1)
    arguments = [f"source={folder}", "chat_template=plain", f"spec_bench={spec_bench}", f"output_dir={tmp_path}/out"]
    told = ["prompts=1", "tokens=4", "repeats=1", "threads=1", f"vllm_python={sys.executable}"]
    assert main(["decoding", *arguments, *told]) == 0
    written = json.loads((tmp_path / "out" / "decoding.json").read_text())
    rows = {row["metric"]: Row(**row) for row in written["rows"]}
    assert written["settings"]["vllm"] == "9"
    assert rows["plain_c8"].peer == best
    assert {rows["plain_c8"].peer, rows["plain_c8_other"].peer} == {"vLLM", "transformers static batch"}
    assert rows["ngram_c8"].peer == "vLLM n-gram"
    assert rows["ngram_c8"].holds is (rows["ngram_c8"].ratio >= 1.25)
    assert {"plain_c1_vllm", "ngram_c1_vllm", "text_plain_c1_vllm"} <= set(rows)
