"""The error budget says what is true: its sums, its series, and the numbers that the documents quote."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import canary
from canary.domain import budget
from canary.domain.policy import Gates

WEIGHTS = (
    budget.FULL_WEIGHT,
    budget.ACC_WEIGHT,
    budget.RES_WEIGHT,
    budget.XREQ_WEIGHT,
    budget.OUTLIER_WEIGHT,
    budget.TEXT_WEIGHT,
)
DOCS = (Path(canary.__file__).parent / "docs" / "policy.md").read_text()


def test_the_weights_of_the_losslessness_e_value_sum_to_one() -> None:
    assert sum(WEIGHTS) == pytest.approx(1.0, abs=1e-12)
    assert min(WEIGHTS) > 0


def test_the_lifetime_sum_is_the_series() -> None:
    """A thousand attempts and an integral for the rest, against the closed form."""
    first = sum(budget.alpha_of(0.01, j) for j in range(1, 1001))
    rest_low, rest_high = (0.01 * 6 / math.pi**2 / n for n in (1001, 1000))
    assert first + rest_low <= budget.lifetime_alpha(0.01) <= first + rest_high
    assert round(budget.lifetime_alpha(0.01), 4) == 0.0139
    # Without the factor 6 / pi^2 from the second attempt on it would be pi^2 / 6 alpha.
    assert budget.lifetime_alpha(0.01) < 0.01 * math.pi**2 / 6


def test_attempts_spend_less_and_less() -> None:
    spent = [budget.alpha_of(0.01, j) for j in range(1, 20)]
    assert spent[0] == 0.01
    assert spent == sorted(spent, reverse=True)
    assert spent[1] == pytest.approx(0.01 * 6 / (math.pi**2 * 4))
    assert Gates(alpha=0.02).alpha_of(3) == budget.alpha_of(0.02, 3)
    with pytest.raises(ValueError, match="count from 1"):
        budget.alpha_of(0.01, 0)


def test_defaults_come_from_the_budget() -> None:
    assert Gates().alpha == budget.KILL_ALPHA


def test_a_false_page_of_the_change_detector_comes_once_in_ten_years() -> None:
    for per_day in (10.0, 4_000.0):
        days = budget.run_length(per_day) / per_day
        assert days == pytest.approx(3650)
    assert budget.run_length(0.0) == 1.0


def test_all_splits_together_spend_no_more_than_one_gate() -> None:
    assert budget.RATIO_SPLITS * budget.RATIO_ALPHA <= budget.KILL_ALPHA


def test_the_document_quotes_the_same_numbers() -> None:
    for words in (
        f"at {budget.KILL_ALPHA:g} each",
        f"{budget.lifetime_alpha(budget.KILL_ALPHA):.4f} of each e-value",
        f"{len(budget.KILL_E_VALUES) * budget.lifetime_alpha(budget.KILL_ALPHA):.4f} in all",
        f"either way with probability at most {budget.lifetime_alpha(budget.KILL_ALPHA):.4f}",
        f"reaches full with probability at most {budget.window_alpha(budget.KILL_ALPHA, 1):g}",
        f"bank and PIT {budget.FULL_WEIGHT:g}",
        f"accept draw {budget.ACC_WEIGHT:g}",
        f"recovered draw {budget.RES_WEIGHT:g}",
        f"across requests {budget.XREQ_WEIGHT:g}",
        f"row outliers {budget.OUTLIER_WEIGHT:g}",
        f"texts alone {budget.TEXT_WEIGHT:g}",
        f"e-value of {budget.PAGE_AT:g}",
        f"limit of {budget.CONTROL_LIMIT:g}",
        f"confirmed at {budget.CONFIRM_ALPHA:g}",
        f"sample ratio at {budget.RATIO_ALPHA:g} each",
        f"{budget.RATIO_SPLITS} splits, so {budget.RATIO_SPLITS * budget.RATIO_ALPHA:g} in all",
        f"{budget.DAYS_PER_FALSE_PAGE:,} days",
    ):
        assert words in DOCS, words
