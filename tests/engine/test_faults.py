"""Every shipped fault changes the output distribution where it says that it does, and only unknown or unfit ones are refused."""

from __future__ import annotations

import pytest
import torch

from canary.domain.errors import UsageError
from canary.domain.pairs import DrafterKind
from canary.engine.faults import FAULTS, get_fault
from canary.engine.sampling import INVALID, draw
from canary.engine.verify import verify
from tests.engine.worlds import exact, round_distribution, table, total_variation

CASES = [(name, kind) for name, fault in FAULTS.items() for kind in sorted(fault.applies_to)]


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_fault_changes_the_distribution(name: str, kind: DrafterKind, width: int) -> None:
    fault = get_fault(name, kind)
    target, draft = table(11), table(12, sharp=0.8)
    faulty_verify, faulty_draw = fault.wrap_verify(verify), fault.wrap_draw(draw)
    found = round_distribution(faulty_verify, faulty_draw, target, draft, width, width, kind is DrafterKind.DENSE)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert total_variation(found, exact(target, width + 1)) > 1e-3


def test_the_catalogue_names_the_three_faults() -> None:
    assert {name: fault.catalogue_id for name, fault in FAULTS.items()} == {
        "greedy_draft_softmax_q": "A1",
        "uniform_zero": "A7",
        "resample_from_target": "A11",
    }
    assert FAULTS["greedy_draft_softmax_q"].applies_to == {DrafterKind.DENSE}


def test_the_greedy_draft_is_harmless_where_drafts_count_as_one_hot() -> None:
    """Why that fault does not apply to them: a token treated as certain is verified exactly, whatever drew it."""
    target, draft = table(11), table(12, sharp=0.8)
    faulty_draw = get_fault("greedy_draft_softmax_q").wrap_draw(draw)
    found = round_distribution(verify, faulty_draw, target, draft, 2, 2, dense=False)
    assert total_variation(found, exact(target, 3)) < 1e-9


def test_an_unknown_fault_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no fault named 'gremlin'.*greedy_draft_softmax_q, uniform_zero, resample_from_target"):
        get_fault("gremlin")


def test_a_fault_that_cannot_show_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot show with a one_hot drafter.*kind dense"):
        get_fault("greedy_draft_softmax_q", DrafterKind.ONE_HOT)


def test_faults_leave_broken_rows_broken() -> None:
    rows = torch.full((1, 2, 5), torch.nan)
    drafts, length, uniforms = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), torch.zeros(1, 2)
    for fault in FAULTS.values():
        assert fault.wrap_draw(draw)(rows[0], uniforms[0]).tokens.tolist() == [INVALID] * 2
        found = fault.wrap_verify(verify)(rows, drafts, length, None, uniforms[:, :1], uniforms)
        assert found.next_token.item() == INVALID
