"""Who wins a search, and what a confirmation says of the winner."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.measurement.statistics import log_ratio
from pipeline.policy.decide import choose, decide, verdict
from pipeline.records.failure import Failure
from pipeline.records.settings import NO_LIMITS, Constraints
from pipeline.records.target import Candidate, DraftModel, EarlyExit, Ngram

NGRAM, MODEL, EXIT = Ngram(name="ngram"), DraftModel(name="small", source="org/small"), EarlyExit(name="exit", layers=4)
MARGIN = 0.03


@pytest.fixture
def searched(make_measurement):
    """A search measurement of ``draft`` γ; ``spread`` is the noise between prompts."""

    def make(draft, gamma, speedup, spread=0.0, **changes):
        candidate = Candidate(draft=draft, gamma=gamma)
        return make_measurement(f"{draft.name}-{gamma}", candidate=candidate, speedup=speedup, spread=spread, **changes)

    return make


@pytest.fixture
def confirmed(make_measurement):
    def make(low, high, **changes):
        figures = {"speedup": math.sqrt(low * high), "speedup_low": low, "speedup_high": high, "interval_level": 0.9833}
        return make_measurement("conf", kind="confirmation", **(figures | changes))

    return make


def test_the_greatest_speedup_wins(searched) -> None:
    fast = searched(MODEL, 8, 1.5)
    assert choose([searched(NGRAM, 2, 1.2), fast, searched(EXIT, 2, 1.3)]) is fast


def test_within_one_percent_a_draft_without_weights_wins_before_a_smaller_gamma(searched) -> None:
    light = searched(NGRAM, 8, 1.492)
    assert choose([searched(MODEL, 2, 1.5), light, searched(MODEL, 1, 1.495)]) is light


def test_within_one_percent_the_smaller_gamma_wins_among_equal_weights(searched) -> None:
    small = searched(EXIT, 2, 1.492)
    assert choose([searched(NGRAM, 8, 1.5), small, searched(NGRAM, 4, 1.495)]) is small


def test_beyond_one_percent_and_without_noise_nothing_is_equal(searched) -> None:
    fast = searched(MODEL, 8, 1.5)
    assert choose([fast, searched(NGRAM, 2, 1.48)]) is fast


def test_within_one_standard_error_of_the_paired_difference_candidates_are_equal(searched) -> None:
    """Prompts that alternate by ± 20 % against steady ones leave a difference of 5 % unknown, but not one of 15 %."""
    light = searched(NGRAM, 2, 1.43, spread=0.2)
    assert choose([searched(MODEL, 8, 1.5), light]) is light
    fast = searched(MODEL, 8, 1.65)
    assert choose([fast, light]) is fast


@pytest.mark.parametrize(("errors", "equal"), [(0.95, True), (1.05, False), (1.95, False)])
def test_one_standard_error_is_one_and_not_two(searched, errors, equal) -> None:
    light = searched(NGRAM, 2, 1.4, spread=0.2)
    # The spread moves the ratio of sums a little, too: the gap is set from there.
    found, error = log_ratio(searched(MODEL, 8, 1.4), light)
    assert error > 2 * math.log(1.01)
    fast = searched(MODEL, 8, 1.4 * math.exp(errors * error - found))
    assert log_ratio(fast, light) == (pytest.approx(errors * error), pytest.approx(error))
    assert choose([fast, light]) is (light if equal else fast)


def test_noise_that_both_share_is_no_excuse(searched) -> None:
    fast = searched(MODEL, 8, 1.5, spread=0.2)
    assert choose([fast, searched(NGRAM, 2, 1.43, spread=0.2)]) is fast


@pytest.mark.parametrize("units", [0, 1])
def test_too_few_common_prompts_to_pair_leave_only_the_one_percent(searched, units) -> None:
    fast, near = searched(MODEL, 8, 1.5, units=units), searched(NGRAM, 2, 1.49, units=units)
    assert choose([fast, near]) is near
    assert choose([fast, searched(NGRAM, 2, 1.4, units=units)]) is fast


def test_a_a_and_figures_that_are_no_numbers_take_no_part(searched, make_measurement) -> None:
    a_a = make_measurement("aa", kind="aa", candidate=Candidate(draft=None, gamma=0), speedup=9.0)
    broken = [searched(EXIT, g, value) for g, value in ((1, math.nan), (2, math.inf))]
    only = searched(NGRAM, 2, 0.8)
    assert choose([a_a, *broken, only]) is only
    assert choose([a_a, *broken]) is None
    assert choose([]) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(speedups=st.lists(st.floats(0.5, 2.0), min_size=4, max_size=4), spread=st.sampled_from([0.0, 0.1]))
def test_the_winner_does_not_depend_on_the_order_and_is_never_beaten_by_more_than_the_tie(
    searched, speedups, spread
) -> None:
    drafts = [(NGRAM, 1), (NGRAM, 4), (MODEL, 1), (EXIT, 4)]
    all_four = [searched(d, g, s, spread * (i % 2)) for i, ((d, g), s) in enumerate(zip(drafts, speedups, strict=True))]
    winners = {choose(order).id for order in permutations(all_four)}
    assert len(winners) == 1
    if spread == 0.0:
        winner = next(m for m in all_four if m.id in winners)
        assert winner.metrics.speedup >= max(speedups) / 1.0101


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.31, 1.53, "on"),
        (1.04, 1.05, "on"),
        (1.03, 1.50, None),
        (0.98, 1.09, None),
        (0.90, 1.03, "off"),
        (1.01, 1.02, "off"),
        (0.60, 0.80, "off"),
    ],
)
def test_only_an_interval_on_one_side_of_the_margin_decides(confirmed, low, high, expected) -> None:
    assert verdict(confirmed(low, high), MARGIN) == expected


@pytest.mark.parametrize(("low", "high"), [(1.3, 1.5), (0.6, 0.8)])
def test_fewer_than_eight_units_decide_nothing(confirmed, low, high) -> None:
    assert verdict(confirmed(low, high, units=7), MARGIN) is None
    assert verdict(confirmed(low, high, units=8), MARGIN) is not None


@pytest.mark.parametrize("bad", [None, math.nan])
def test_an_interval_that_is_not_there_decides_nothing(confirmed, bad) -> None:
    assert verdict(confirmed(1.3, 1.5, speedup_low=bad), MARGIN) is None


def test_a_confirmed_gain_is_on_with_its_evidence(confirmed) -> None:
    confirmation = confirmed(1.31, 1.53)
    decision = decide(confirmation.cell, [], confirmation, [], MARGIN)
    assert (decision.status, decision.speculate, decision.measurement) == ("on", True, "conf")
    assert (decision.draft, decision.gamma) == (NGRAM, 4)
    assert (decision.speedup_low, decision.speedup_high) == (1.31, 1.53)
    assert decision.reason == (
        "measured 1.42× (1.31–1.53, 98.3 %) on 12 fresh prompts: an iteration gives 2.10 tokens and takes "
        "1.48 plain steps"
    )


def test_a_confirmed_loss_is_off_and_says_why(confirmed) -> None:
    """High acceptance, and yet slower: what it costs stands beside what comes of it."""
    confirmation = confirmed(0.85, 0.97, acceptance_rate=0.9)
    decision = decide(confirmation.cell, [], confirmation, [], MARGIN)
    assert (decision.status, decision.speculate) == ("off", False)
    assert decision.reason.startswith(
        "ngram γ4 was best at 0.91× (0.85–0.97, 98.3 %) on 12 fresh prompts: an iteration"
    )
    assert "plain steps" in decision.reason


def test_a_gain_below_the_margin_is_off_and_names_the_margin(confirmed) -> None:
    decision = decide(confirmed(1, 1.02).cell, [], confirmed(1.00, 1.02), [], MARGIN)
    assert decision.status == "off"
    assert "below 1.03 it does not pay" in decision.reason


def test_an_interval_that_holds_the_margin_is_undecided(confirmed) -> None:
    decision = decide(confirmed(1, 1).cell, [], confirmed(0.98, 1.09), [], MARGIN)
    assert (decision.status, decision.speculate) == ("undecided", False)
    assert "the interval 0.98–1.09 (98.3 %) on 12 fresh prompts includes 1.03" in decision.reason
    assert "budget" in decide(confirmed(1, 1).cell, [], confirmed(0.98, 1.09), [], MARGIN, True).reason


def test_too_few_prompts_are_undecided_however_fast(confirmed) -> None:
    decision = decide(confirmed(1, 1).cell, [], confirmed(1.9, 2.1, units=5), [], MARGIN)
    assert decision.status == "undecided"
    assert "5 fresh prompts, too few" in decision.reason


def test_what_is_already_confirmed_stands_though_the_budget_ended(confirmed) -> None:
    assert decide(confirmed(1, 1).cell, [], confirmed(1.3, 1.5), [], MARGIN, out_of_budget=True).status == "on"


def test_the_search_alone_never_turns_speculation_on(searched) -> None:
    best = searched(NGRAM, 2, 3.0, units=50)
    for out_of_budget in (False, True):
        decision = decide(best.cell, [best], None, [], MARGIN, out_of_budget)
        assert (decision.status, decision.speculate, decision.measurement) == ("undecided", False, None)
        assert decision.speedup == 3.0


def test_a_search_whose_best_is_wholly_below_one_is_off_unless_the_budget_cut_it_short(searched) -> None:
    best = searched(NGRAM, 2, 0.7)
    assert decide(best.cell, [best], None, [], MARGIN).status == "off"
    assert decide(best.cell, [best], None, [], MARGIN, out_of_budget=True).status == "undecided"


def test_a_cell_whose_candidates_all_failed_is_failed_and_names_the_first(searched) -> None:
    cell = searched(NGRAM, 2, 1.0).cell
    candidate = Candidate(draft=MODEL, gamma=4)
    failure = Failure(cell=cell, candidate=candidate, kind="out_of_memory", message="needs 9 GiB\nhas 8", worker="w1")
    decision = decide(cell, [], None, [failure, failure], MARGIN)
    assert (decision.status, decision.draft, decision.gamma) == ("failed", None, 0)
    assert "small γ4: out of memory on w1: needs 9 GiB has 8" in decision.reason
    assert "2 candidates failed" in decision.reason


def test_a_candidate_that_failed_does_not_hide_the_one_that_was_confirmed(confirmed) -> None:
    confirmation = confirmed(1.3, 1.5)
    failure = Failure(cell=confirmation.cell, candidate=confirmation.candidate, kind="gate", message="text differs")
    assert decide(confirmation.cell, [], confirmation, [failure], MARGIN).status == "on"


def test_a_cell_that_failed_half_way_is_failed_with_what_was_seen(searched) -> None:
    best = searched(NGRAM, 2, 1.4)
    lost = Failure(cell=best.cell, candidate=None, kind="worker_died", message="gone")
    decision = decide(best.cell, [best], None, [lost], MARGIN)
    assert (decision.status, decision.speedup) == ("failed", 1.4)
    assert "worker died: gone" in decision.reason


def test_nothing_at_all_is_undecided_when_the_budget_ended_and_else_failed(searched) -> None:
    cell = searched(NGRAM, 2, 1.0).cell
    assert decide(cell, [], None, [], MARGIN, out_of_budget=True).status == "undecided"
    assert decide(cell, [], None, [], MARGIN).status == "failed"


LIMITS = Constraints(tpot_ms_p99=50.0)


def judged(confirmation, search=(), failures=(), *, out_of_budget=False, limits=LIMITS, others=()):
    cell = (confirmation or search[0]).cell
    return decide(cell, search, confirmation, failures, MARGIN, out_of_budget, limits, others)


def test_the_fastest_that_breaks_no_limit_wins(searched) -> None:
    fast, kept = searched(MODEL, 8, 1.5), searched(NGRAM, 2, 1.2)
    assert choose([fast, kept], {fast.candidate}) is kept
    assert choose([fast, kept], {fast.candidate, kept.candidate}) is None


def test_a_gain_that_breaks_a_limit_is_off_and_says_which_by_how_much(confirmed) -> None:
    decision = judged(confirmed(1.31, 1.53, tpot_ms_p99=61.23))
    assert (decision.status, decision.speculate, decision.measurement) == ("off", False, "conf")
    assert (decision.draft, decision.gamma) == (NGRAM, 4)
    assert decision.reason == (
        "ngram γ4 was best at 1.42× (1.31–1.53, 98.3 %) on 12 fresh prompts, but tpot_ms_p99 61.2 is above 50"
    )


def test_every_broken_limit_is_named(confirmed) -> None:
    slow = confirmed(1.31, 1.53, tpot_ms_p99=61.0, speedup_e2e=1.1)
    decision = judged(slow, limits=Constraints(tpot_ms_p99=50.0, speedup_e2e=1.25))
    assert decision.reason.endswith("but tpot_ms_p99 61 is above 50 and speedup_e2e 1.1 is below 1.25")


@pytest.mark.parametrize("tpot", [50.0, 12.0, None])
def test_a_gain_within_its_limits_or_without_such_a_figure_is_on(confirmed, tpot) -> None:
    decision = judged(confirmed(1.31, 1.53, tpot_ms_p99=tpot))
    assert (decision.status, decision.speculate) == ("on", True)


def test_a_broken_limit_with_others_left_to_try_is_undecided_when_the_budget_ended(confirmed, searched) -> None:
    decision = judged(confirmed(1.31, 1.53, tpot_ms_p99=61.0), out_of_budget=True)
    assert (decision.status, decision.speculate) == ("undecided", False)
    assert "tpot_ms_p99 61 is above 50; the budget ended before" in decision.reason
    assert judged(None, [searched(NGRAM, 2, 1.4, tpot_ms_p99=61.0)], out_of_budget=True).status == "undecided"


@pytest.mark.parametrize(("looks", "status"), [(("l1", "l2"), "undecided"), (("l1", "l2", "l3"), "on")])
def test_limits_are_not_judged_on_a_confirmation_that_the_budget_cut_short(confirmed, looks, status) -> None:
    gain = confirmed(1.31, 1.53, tpot_ms_p99=40.0, parts=looks)
    assert judged(gain, out_of_budget=True).status == status
    assert judged(gain, out_of_budget=True, limits=NO_LIMITS).status == "on"


def test_a_candidate_that_cannot_be_used_is_off_though_its_gain_is_unclear(confirmed) -> None:
    decision = judged(confirmed(0.98, 1.09, tpot_ms_p99=61.0))
    assert decision.status == "off"
    assert "tpot_ms_p99 61 is above 50" in decision.reason
    cut_short = judged(confirmed(0.98, 1.09, tpot_ms_p99=61.0), out_of_budget=True)
    assert (cut_short.status, "the interval" in cut_short.reason) == ("undecided", True)


def test_a_loss_is_off_for_its_speed_whatever_limit_it_breaks(confirmed) -> None:
    decision = judged(confirmed(0.85, 0.97, tpot_ms_p99=61.0))
    assert decision.status == "off"
    assert "tpot_ms_p99" not in decision.reason


def test_a_search_in_which_all_broke_a_limit_decides_nothing_and_names_the_best(searched) -> None:
    slow, fast = searched(NGRAM, 2, 1.2, tpot_ms_p99=70.0), searched(MODEL, 8, 1.5, tpot_ms_p99=61.0)
    decision = judged(None, [slow, fast])
    assert (decision.status, decision.draft, decision.measurement) == ("undecided", MODEL, None)
    assert decision.reason == (
        "small γ8 was best at 1.50× (1.42–1.58, 95 %) in the search, but tpot_ms_p99 61 is above 50; "
        "no confirmation was made"
    )


@pytest.mark.parametrize(("low", "high", "status"), [(1.31, 1.53, "on"), (0.9, 1.2, "undecided"), (0.8, 0.9, "off")])
def test_a_faster_candidate_that_broke_a_limit_is_named_beside_the_one_that_did_not(
    confirmed, searched, low, high, status
) -> None:
    kept, fast = confirmed(low, high, tpot_ms_p99=40.0), searched(MODEL, 8, 1.9, tpot_ms_p99=61.0)
    named = "; small γ8 is faster at 1.90×, but tpot_ms_p99 61 is above 50"
    for decision in (judged(kept, [fast]), judged(kept, others=[kept, fast])):
        assert (decision.status, decision.draft) == (status, NGRAM)
        assert decision.reason.endswith(named)
    for too_slow in (0.7, 0.95):
        assert "faster" not in judged(kept, [searched(MODEL, 8, too_slow, tpot_ms_p99=61.0)]).reason
    assert "faster" not in judged(kept, [searched(MODEL, 8, 1.9, tpot_ms_p99=41.0)]).reason


def test_a_cell_that_failed_is_failed_though_its_best_broke_a_limit(confirmed) -> None:
    confirmation = confirmed(1.31, 1.53, tpot_ms_p99=61.0)
    lost = Failure(cell=confirmation.cell, candidate=None, kind="worker_died", message="gone")
    assert judged(confirmation, failures=[lost]).status == "failed"


@pytest.mark.parametrize(("level", "shown"), [(1 - 0.04 / 3, "98.7 %"), (1 - 0.01 / 24, "99.96 %"), (0.95, "95 %")])
def test_a_level_is_never_shown_as_certainty(confirmed, level, shown) -> None:
    assert f"1.53, {shown}" in judged(confirmed(1.31, 1.53, interval_level=level)).reason


def test_figures_that_are_no_numbers_never_reach_a_decision(confirmed) -> None:
    odd = confirmed(1.3, 1.5, tau_spec_ms=math.inf, acceptance_rate=math.nan)
    decision = decide(odd.cell, [], replace(odd), [], MARGIN)
    assert (decision.status, decision.tau_spec_ms, decision.acceptance_rate) == ("on", None, None)


def test_every_reason_is_one_line(confirmed, searched) -> None:
    for status in (confirmed(1.3, 1.5), confirmed(0.8, 0.9), confirmed(0.9, 1.2), None):
        assert "\n" not in decide(searched(NGRAM, 2, 1).cell, [searched(NGRAM, 2, 1)], status, [], MARGIN).reason
