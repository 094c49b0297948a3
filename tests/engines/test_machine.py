"""How a target's source sets the simulated machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.engines import roofline
from pipeline.engines.devices import DEVICES
from pipeline.engines.machine import Machine, break_down, machine_from, shape_text
from pipeline.records.failure import InputError
from pipeline.records.shape import ModelShape
from pipeline.records.target import DraftModel, EarlyExit, Ngram

NGRAM = Ngram(name="ngram")


def test_a_source_sets_fields_and_leaves_the_rest():
    machine = machine_from("simulated:?tau0_ms=12.5&seed=7", Machine(alpha=0.9))
    assert machine == Machine(alpha=0.9, tau0_ms=12.5, seed=7)


def test_any_other_source_changes_nothing():
    assert machine_from("org/model?alpha=0.1", Machine()) == Machine()


def test_a_draft_has_its_own_value_where_the_source_gives_one():
    machine = machine_from("simulated:?alpha=0.8&alpha.ngram=.6&draft_ms.ngram=0&miss.ngram=0.5", Machine())
    other = DraftModel(name="small", source="small")
    assert (machine.of("alpha", NGRAM), machine.of("draft_ms", NGRAM), machine.of("miss", NGRAM)) == (0.6, 0.0, 0.5)
    assert (machine.of("alpha", other), machine.of("draft_ms", other), machine.of("miss", other)) == (0.8, 0.5, 0.0)


@pytest.mark.parametrize(
    "query", ["alfa=0.8", "alpha=high", "fail.ngram=slowly", "fail.=error", "tau0_ms.ngram=3", "seed=1.5", "by_draft=1"]
)
def test_what_is_not_understood_is_named_with_what_is_allowed(query):
    with pytest.raises(InputError) as caught:
        machine_from(f"simulated:?{query}", Machine())
    message = str(caught.value)
    assert query in message
    assert "tau0_ms" in message
    assert "\n" not in message


def test_a_fault_waits_for_its_good_runs():
    machine = machine_from("simulated:?fail.ngram=out_of_memory&fail_after=2", Machine())
    break_down(machine, "ngram", 1)
    break_down(machine, "small", 9)
    with pytest.raises(MemoryError):
        break_down(machine, "ngram", 2)


def test_forwards_are_flat_and_then_linear_in_positions():
    machine = Machine(tau0_ms=10, token_ms=0.5)
    assert [machine.forward_ms(n) for n in (1, 20, 40)] == [10, 10, 20]


def test_a_source_draws_a_roofline_from_a_device_and_shapes():
    target = ModelShape(
        num_hidden_layers=48,
        hidden_size=2048,
        intermediate_size=768,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=151936,
        num_experts=128,
        num_experts_per_tok=8,
    )
    small = replace(target, num_hidden_layers=28, num_experts=0, num_experts_per_tok=0, tie_word_embeddings=True)
    source = f"simulated:?device=h100&shape={shape_text(target)}&shape.small={shape_text(small)}&overhead_ms=0.2"
    machine = machine_from(source, Machine())
    assert machine == Machine(device="h100", shape=target, shapes={"small": small}, overhead_ms=0.2)
    assert (
        machine.forward_ms(8)
        == machine.forward_ms(8, rows=1)
        == pytest.approx(roofline.forward_ms(target, DEVICES["h100"], "bfloat16", rows=1, width=8))
    )
    assert machine.forward_ms(8, rows=2, context=5000) > machine.forward_ms(8, rows=2)
    assert replace(machine, dtype="float32").forward_ms(8) > 1.5 * machine.forward_ms(8)
    assert machine.prompt_ms(500) > machine.prompt_ms(1)


def test_draft_models_without_a_shape_and_drafts_with_a_time_of_their_own_cost_what_the_source_says():
    shape = "36x4096x12288x32x8x128x151936"
    machine = machine_from(f"simulated:?device=h100&shape={shape}&draft_ms=0.7&draft_ms.ngram=2", Machine())
    assert machine.drafting_ms(DraftModel(name="small", source="small"), 3) == pytest.approx(2.1)
    assert machine.drafting_ms(NGRAM, 3) == 6
    assert machine.drafting_ms(EarlyExit(name="exit", layers=18), 1) > 1
    assert Machine().drafting_ms(EarlyExit(name="exit", layers=18), 3) == 1.5


@pytest.mark.parametrize(
    "query",
    [
        "device=h100",
        "device=h300&shape=1x2x3x4x5x6x7",
        "shape=8b",
        "shape.small=1x2x3",
        "shape=1x2x3x4x5x6x0",
        "shape=",
    ],
)
def test_devices_and_shapes_that_are_none_are_named_with_what_is_allowed(query):
    with pytest.raises(InputError, match="shape"):
        machine_from(f"simulated:?{query}", Machine())
