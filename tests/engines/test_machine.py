"""How a target's source sets the simulated machine."""

from __future__ import annotations

import pytest

from pipeline.engines.machine import Machine, break_down, machine_from
from pipeline.records.failure import InputError
from pipeline.records.target import DraftModel, Ngram

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
