"""Quantiles of Student's t agree with scipy's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.measurement.student import t_quantile


@given(probability=st.floats(0.001, 0.9999), df=st.floats(0.9, 5000))
def test_quantiles_are_scipys(probability, df):
    assert t_quantile(probability, df) == pytest.approx(float(stats.t.ppf(probability, df)), rel=1e-7, abs=1e-9)


def test_table_values_come_out():
    assert t_quantile(0.975, 7) == pytest.approx(2.364624)
    assert t_quantile(0.975, 1) == pytest.approx(12.7062047)
    assert t_quantile(0.5, 3) == pytest.approx(0, abs=1e-12)
    assert t_quantile(0.025, 11) == -t_quantile(0.975, 11)


@pytest.mark.parametrize(("probability", "df"), [(0, 5), (1, 5), (0.9, 0), (0.9, -1)])
def test_what_has_no_quantile_is_an_error(probability, df):
    with pytest.raises(ValueError, match="needs 0 < probability < 1"):
        t_quantile(probability, df)
