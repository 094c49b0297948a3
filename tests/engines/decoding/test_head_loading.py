"""Heads on disk: what is read, and what is refused by name before it can spoil acceptance in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_heads import FLAT, SPECULATORS, eagle3_entries, eagle3_tensors, write, write_eagle3, write_medusa
from tiny_models import VOCABULARY
from torch import Tensor

from pipeline.engines.decoding.heads.eagle3 import Eagle3Head
from pipeline.engines.decoding.heads.loading import load_head
from pipeline.engines.decoding.heads.medusa import MedusaHeads
from pipeline.engines.decoding.loading import LoadedModel, load_target
from pipeline.records.failure import InputError
from pipeline.records.target import Eagle3, Head, Medusa, Target

LAYOUTS = (FLAT, SPECULATORS)


@pytest.fixture(scope="module")
def loaded(target: Target) -> LoadedModel:
    return load_target(target, "cpu")


@pytest.fixture
def refused(loaded: LoadedModel, target: Target) -> Callable[[Head], str]:
    def load(draft: Head) -> str:
        with pytest.raises(InputError) as raised:
            load_head(draft, loaded, target, "cpu")
        message = str(raised.value)
        assert message.startswith(f"drafts.{draft.name}.source")
        assert "\n" not in message
        return message

    return load


class TestMedusa:
    @pytest.mark.parametrize("prefix", ["", "medusa_head.", "model.medusa_head."])
    def test_heads_are_read_under_any_one_prefix(
        self, tmp_path: Path, loaded: LoadedModel, target: Target, prefix: str
    ) -> None:
        folder = write_medusa(tmp_path, heads=3, prefix=prefix)
        heads = load_head(Medusa(name="m", source=str(folder)), loaded, target, "cpu")
        assert isinstance(heads, MedusaHeads)
        assert heads.count == 3
        assert heads.revision.startswith("content-")
        assert heads.weight_bytes == 3 * (32 * 32 + 32 + 32 * VOCABULARY) * 4

    def test_published_files_may_hold_more_heads_than_their_configuration_counts(
        self, tmp_path: Path, loaded: LoadedModel, target: Target
    ) -> None:
        folder = write_medusa(tmp_path, heads=5, medusa_num_heads=2)
        heads = load_head(Medusa(name="m", source=str(folder)), loaded, target, "cpu")
        assert isinstance(heads, MedusaHeads)
        assert heads.count == 5

    @pytest.mark.parametrize(
        ("config", "said"),
        [
            ({"hidden_size": 64}, "hidden_size is 64, its target's 32: these heads belong to another model"),
            ({"vocab_size": 32000}, f"vocab_size is 32000, its target's {VOCABULARY}"),
            ({"medusa_num_heads": 6}, "4.0.linear.bias is missing (6 tensors are)"),
            ({"medusa_num_heads": 0}, "config.json: medusa_num_heads is 0; allowed: a whole number of at least 1"),
            ({"medusa_num_heads": None}, "config.json: medusa_num_heads is missing"),
            ({"medusa_num_layers": 2}, "0.1.linear.bias is missing"),
            ({"medusa_choices": [[0]]}, "config.json: medusa_choices=[[0]] is not known here"),
            ({"original_lm_head": True}, "0.1.weight is not a tensor of such a head (4 are not)"),
        ],
    )
    def test_what_does_not_fit_is_named(
        self, tmp_path: Path, refused: Callable[[Head], str], config: dict[str, object], said: str
    ) -> None:
        assert said in refused(Medusa(name="m", source=str(write_medusa(tmp_path, **config))))  # type: ignore[arg-type]

    def test_a_head_without_an_output_layer_is_named(self, tmp_path: Path, refused: Callable[[Head], str]) -> None:
        folder = write_medusa(tmp_path, heads=2)
        path = folder / "medusa_lm_head.safetensors"
        tensors = load_file(path)
        del tensors["1.1.weight"]
        save_file(tensors, path)
        assert refused(Medusa(name="m", source=str(folder))).endswith(": 1.1.weight is missing (1 tensors are)")

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("lm_head.weight", "lm_head.weight is not a tensor of Medusa heads"),
            ("other.0.0.linear.bias", "other.0.0.linear.bias is not a tensor of Medusa heads"),
            ("0.7.weight", "0.7.weight is not a tensor of such a head"),
        ],
    )
    def test_a_tensor_too_many_is_named(
        self, tmp_path: Path, refused: Callable[[Head], str], name: str, said: str
    ) -> None:
        folder = write_medusa(tmp_path)
        path = folder / "medusa_lm_head.safetensors"
        save_file(load_file(path) | {name: torch.zeros(32)}, path)
        assert said in refused(Medusa(name="m", source=str(folder)))

    def test_another_shape_is_named(self, tmp_path: Path, refused: Callable[[Head], str]) -> None:
        folder = write_medusa(tmp_path, vocabulary=64)
        assert "0.1.weight has shape [64, 32], its configuration says [61, 32]" in refused(
            Medusa(name="m", source=str(folder))
        )


class TestFiles:
    def test_pickles_are_read_only_when_allowed_and_then_only_tensors(
        self, tmp_path: Path, loaded: LoadedModel, target: Target, refused: Callable[[Head], str]
    ) -> None:
        folder = write_medusa(tmp_path, heads=2)
        torch.save(load_file(folder / "medusa_lm_head.safetensors"), folder / "medusa_lm_head.pt")
        (folder / "medusa_lm_head.safetensors").unlink()
        draft = Medusa(name="m", source=str(folder))
        assert "only pickled weights (allowed: safetensors; or set allow_pickle)" in refused(draft)
        trusting = Target(name="tiny", source=target.source, allow_pickle=True)
        heads = load_head(draft, loaded, trusting, "cpu")
        assert isinstance(heads, MedusaHeads)
        assert heads.count == 2
        torch.save({"0.0.linear.weight": Path("x")}, folder / "medusa_lm_head.pt")
        with pytest.raises(InputError, match=r"medusa_lm_head\.pt cannot be read"):
            load_head(draft, loaded, trusting, "cpu")
        torch.save({"0.0.linear.weight": 3}, folder / "medusa_lm_head.pt")
        with pytest.raises(InputError, match=r"holds more than tensors by name"):
            load_head(draft, loaded, trusting, "cpu")

    def test_what_is_not_there_or_broken_is_named(self, tmp_path: Path, refused: Callable[[Head], str]) -> None:
        draft = Eagle3(name="e", source=str(tmp_path))
        assert "has no config.json" in refused(draft)
        assert "no such file or folder" in refused(Eagle3(name="e", source=str(tmp_path / "nowhere" / "at" / "all")))
        (tmp_path / "config.json").write_text("{")
        (tmp_path / "model.safetensors").write_bytes(b"nothing")
        assert "config.json cannot be read" in refused(draft)
        (tmp_path / "config.json").write_text("[]")
        assert "config.json is not a mapping" in refused(draft)
        (tmp_path / "config.json").write_text(json.dumps(eagle3_entries(FLAT)))
        assert "model.safetensors cannot be read" in refused(draft)

    def test_a_tensor_in_two_files_is_named(self, tmp_path: Path, refused: Callable[[Head], str]) -> None:
        folder = write_medusa(tmp_path)
        save_file({"0.0.linear.bias": torch.zeros(32)}, folder / "more.safetensors")
        assert "0.0.linear.bias is in more than one file" in refused(Medusa(name="m", source=str(folder)))


class TestEagle3Files:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_the_targets_hidden_states_must_exist(
        self, tmp_path: Path, refused: Callable[[Head], str], layout: str
    ) -> None:
        entries = eagle3_entries(layout, eagle_aux_hidden_state_layer_ids=[2, 5, 3])
        write_eagle3(tmp_path, entries, {}, layout)
        assert "fuses hidden states 2, 5, 3, its target has 0 to 4" in refused(Eagle3(name="e", source=str(tmp_path)))

    @pytest.mark.parametrize("naming", LAYOUTS)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_either_naming_goes_with_either_configuration(
        self, tmp_path: Path, loaded: LoadedModel, target: Target, layout: str, naming: str
    ) -> None:
        entries = eagle3_entries(layout)
        write_eagle3(tmp_path, entries, eagle3_tensors(entries), naming)
        head = load_head(Eagle3(name="e", source=str(tmp_path)), loaded, target, "cpu")
        assert isinstance(head, Eagle3Head)
        assert head.states == (2, 2, 1)
        assert head.vocabulary is None, "all of the target's tokens"

    def test_the_weights_take_the_targets_type(self, tmp_path: Path, target: Target) -> None:
        low = Target(name="tiny", source=target.source, dtype="bfloat16", chat_template="plain")
        entries = eagle3_entries(FLAT)
        write_eagle3(tmp_path, entries, eagle3_tensors(entries), FLAT)
        head = load_head(Eagle3(name="e", source=str(tmp_path)), load_target(low, "cpu"), low, "cpu")
        assert isinstance(head, Eagle3Head)
        assert head.dtype == torch.bfloat16
        assert head._rotary.inv_freq.dtype == torch.float32, "angles of long texts need it"

    def test_what_only_training_needs_is_passed_over(self, tmp_path: Path, loaded: LoadedModel, target: Target) -> None:
        entries = eagle3_entries(SPECULATORS)
        tensors = eagle3_tensors(entries) | {"verifier_norm.weight": torch.ones(32)}
        write_eagle3(tmp_path, entries, tensors, SPECULATORS)
        assert load_head(Eagle3(name="e", source=str(tmp_path)), loaded, target, "cpu")

    def test_embeddings_of_another_size_than_the_targets_must_be_there(
        self, tmp_path: Path, loaded: LoadedModel, target: Target, refused: Callable[[Head], str]
    ) -> None:
        entries = eagle3_entries(FLAT, {"hidden_size": 16, "head_dim": 8}, target_hidden_size=32)
        draft = Eagle3(name="e", source=str(tmp_path))
        write_eagle3(tmp_path, entries, eagle3_tensors(entries), FLAT)
        assert load_head(draft, loaded, target, "cpu")
        write_eagle3(tmp_path, entries, eagle3_tensors(entries, embeddings=False), FLAT)
        assert "embed_tokens.weight is missing, and the target's embeddings of 32 do not fit a head of 16" in refused(
            draft
        )

    def test_tensors_that_do_not_fit_are_named(self, tmp_path: Path, refused: Callable[[Head], str]) -> None:
        def without(name: str) -> Callable[[dict[str, Tensor]], object]:
            return lambda tensors: tensors.pop(name)

        def put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
            return lambda tensors: tensors.update({name: tensor})

        known = [2, 3, 5, 8]
        for change, said in (
            (without("lm_head.weight"), "lm_head.weight is missing (1 tensors are)"),
            (without("layers.0.hidden_norm.weight"), "layers.0.hidden_norm.weight is missing"),
            (without("d2t"), f"d2t is missing, and the head knows 4 of its target's {VOCABULARY} tokens"),
            (put("layers.1.mlp.up_proj.weight", torch.zeros(2)), "layers.1.mlp.up_proj.weight is not a tensor of such"),
            (put("input_norm.weight", torch.ones(96)), "input_norm.weight is not a tensor of such a head"),
            (put("layers.0.self_attn.q_norm.weight", torch.ones(8)), "layers.0.self_attn.q_norm.weight is not a"),
            (put("fc.weight", torch.zeros(32, 64)), "fc.weight has shape [32, 64], its configuration says [32, 96]"),
            (put("fc.weight", torch.zeros(32, 96, dtype=torch.int8)), "fc.weight is int8: quantized heads are not"),
            (put("midlayer.mlp.up_proj.weight", torch.zeros(48, 32)), "is there under both namings"),
            (put("d2t", torch.tensor([2, 2, 3])), "d2t has shape [3], wanted are 4 whole numbers"),
            (put("d2t", torch.tensor([2, 1, 3, 5])), "d2t does not lead to 4 different tokens"),
            (put("d2t", torch.tensor([2, 2, 3, 60])), "d2t does not lead to 4 different tokens"),
            (put("d2t", torch.tensor([2, 2, 3, 6])), "t2d and d2t speak of different tokens"),
        ):
            entries = eagle3_entries(SPECULATORS, draft_vocab_size=4)
            tensors = eagle3_tensors(entries, ids=known)
            change(tensors)
            write(tmp_path, entries, tensors, "model.safetensors")
            assert said in refused(Eagle3(name="e", source=str(tmp_path)))

    def test_a_norm_that_is_switched_on_must_be_there(self, tmp_path: Path, refused: Callable[[Head], str]) -> None:
        for flag, name in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
            tensors = eagle3_tensors(eagle3_entries(SPECULATORS))
            write_eagle3(tmp_path, eagle3_entries(SPECULATORS, **{flag: True}), tensors, SPECULATORS)
            assert f"{name} is missing" in refused(Eagle3(name="e", source=str(tmp_path)))
