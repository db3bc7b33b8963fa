"""Every fault has an entry and an injection, changes what it says that it changes, and leaves a broken row broken."""

from __future__ import annotations

import pytest
import torch

from canary.domain.catalogue import CATALOGUE
from canary.domain.errors import UsageError
from canary.domain.pairs import DrafterKind
from canary.domain.traffic import SamplingParams
from canary.engine import sampling, streams
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.faults import FAULTS, INJECTIONS, get_fault
from canary.engine.hooks import CLEAN, Hooks
from canary.engine.rows import Rows
from canary.engine.sampling import INVALID, draw
from canary.engine.streams import Stream
from canary.engine.verify import verify
from tests.engine.worlds import exact, round_distribution, table, total_variation

# Faults of one round by themselves, which a table model shows exactly; the others need a batch, a cache or more than five words.
ROUND = (
    "greedy_draft_softmax_q",
    "cold_draft",
    "hot_draft",
    "greedy_verify",
    "accept_iff_argmax",
    "accept_if_equal",
    "uniform_zero",
    "one_hot_accept_dense_residual",
    "dense_accept_one_hot_residual",
    "resample_from_target",
    "residual_argmax",
    "typical_acceptance",
    "lenient_acceptance",
    "generous_acceptance",
    "bonus_temperature",
    "bonus_from_draft",
)
EVERY_WIDTH = ("greedy_draft_softmax_q", "uniform_zero", "resample_from_target")
CASES = [
    (name, kind, width)
    for name in ROUND
    for kind in sorted(CATALOGUE[name].kinds)
    for width in ((1, 2, 3) if name in EVERY_WIDTH else (2,))
]


@pytest.mark.parametrize(("name", "kind", "width"), CASES)
def test_a_fault_changes_the_distribution(name: str, kind: DrafterKind, width: int) -> None:
    fault = get_fault(name, kind)
    target, draft = table(11), table(12, sharp=0.8)
    faulty_verify, faulty_draw = fault.wrap_verify(verify), fault.wrap_draw(draw)
    found = round_distribution(faulty_verify, faulty_draw, target, draft, width, width, kind is DrafterKind.DENSE)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert total_variation(found, exact(target, width + 1)) > 1e-3


def test_every_entry_can_be_injected_and_nothing_else() -> None:
    assert set(INJECTIONS) == set(CATALOGUE)
    assert list(FAULTS) == list(CATALOGUE)
    assert len({entry.catalogue_id for entry in CATALOGUE.values()}) == len(CATALOGUE)
    for fault in FAULTS.values():
        assert fault.inject(CLEAN) != CLEAN


def test_the_clean_hooks_are_the_engines_own() -> None:
    assert Hooks() == CLEAN
    assert (CLEAN.verify, CLEAN.draw, CLEAN.uniforms) == (verify, draw, streams.uniforms)
    rows, logits = sampling_rows(), torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(0))
    found = CLEAN.process(logits, rows, torch.tensor([2, 2]))
    assert torch.equal(found, sampling.process(logits.reshape(6, 11), rows).view(2, 3, 11))
    assert CLEAN.logits(logits) is logits


def sampling_rows() -> Rows:
    return Rows.of([SamplingParams(8, 0.7, top_p=0.9), SamplingParams(8, 1.0)], 3)


def test_the_greedy_draft_is_harmless_where_drafts_count_as_one_hot() -> None:
    """Why that fault does not apply to them: a token treated as certain is verified exactly, whatever drew it."""
    target, draft = table(11), table(12, sharp=0.8)
    faulty_draw = get_fault("greedy_draft_softmax_q").wrap_draw(draw)
    found = round_distribution(verify, faulty_draw, target, draft, 2, 2, dense=False)
    assert total_variation(found, exact(target, 3)) < 1e-9


def test_the_top_k_draft_is_drawn_from_five_tokens_and_reports_all() -> None:
    probs = torch.rand(1, 50, generator=torch.Generator().manual_seed(1)).expand(200, 50)
    uniforms = torch.rand(200, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    tokens, reported = get_fault("top_k_draft_raw_q").wrap_draw(draw)(probs, uniforms)
    assert set(tokens.tolist()) == set(probs[0].topk(5).indices.tolist())
    assert reported is probs


@pytest.mark.parametrize(("name", "honest"), [("cold_draft", False), ("hot_draft", False), ("cold_draft_reported", True)])
def test_a_tempered_draft_reports_its_row_only_where_it_says_so(name: str, honest: bool) -> None:
    probs = torch.tensor([[0.1, 0.2, 0.7]], dtype=torch.float64)
    _, reported = get_fault(name).wrap_draw(draw)(probs, torch.tensor([0.5], dtype=torch.float64))
    colder = probs**2 / (probs**2).sum()
    assert torch.allclose(reported, colder if honest else probs)


@pytest.mark.parametrize("name", ["seed_reset", "batch_order_draws", "draft_uniform_reused", "shared_noise"])
def test_faults_of_randomness_leave_the_observers_numbers_alone(name: str) -> None:
    keys, positions = torch.tensor([[5, 6], [7, 8]]), torch.arange(3).expand(2, 3)
    which = torch.tensor([Stream.ACCEPT, Stream.SAMPLE, Stream.PIT])[:, None, None]
    asked = (keys, which, positions.expand(3, -1, -1))
    clean, faulty = streams.uniforms(*asked), FAULTS[name].inject(CLEAN).uniforms(*asked)
    assert torch.equal(clean[2], faulty[2])
    assert not torch.equal(clean[:2], faulty[:2])


def test_a_reset_seed_gives_every_request_the_same_numbers() -> None:
    faulty = (
        FAULTS["seed_reset"].inject(CLEAN).uniforms(torch.tensor([[5, 6], [7, 8]]), Stream.SAMPLE, torch.arange(4).expand(2, 4))
    )
    assert torch.equal(faulty[0], faulty[1])


def test_shared_noise_draws_draft_and_recovered_token_by_one_race() -> None:
    """Where the residual is the draft row itself, the recovered token is the draft."""
    hooks = FAULTS["shared_noise"].inject(CLEAN)
    rows = torch.rand(50, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    seeds = torch.rand(50, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    drafts = hooks.draw(rows, seeds).tokens
    none = torch.zeros(50, 0, dtype=torch.int64)
    plain = hooks.verify(rows[:, None], none, torch.zeros(50, dtype=torch.int64), None, none.double(), seeds[:, None])
    assert torch.equal(drafts, plain.next_token)
    assert len(set(drafts.tolist())) > 10


def test_whole_requests_are_chosen_by_their_keys_at_the_rate() -> None:
    hooks = FAULTS["requests_from_draft"].inject(CLEAN)
    keys = torch.arange(4000).view(2000, 2)
    target = torch.full((2000, 2, 4), 0.25)
    drafts, length = torch.zeros(2000, 1, dtype=torch.int64), torch.ones(2000, dtype=torch.int64)
    hooks.uniforms(keys, Stream.ACCEPT, torch.zeros(2000, 1, dtype=torch.int64))
    one = torch.full((2000, 1), 0.99)
    accepted = hooks.verify(target, drafts, length, None, one, torch.full((2000, 2), 0.5)).num_accepted
    assert 20 <= int(accepted.sum()) <= 60


def test_an_unknown_fault_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no fault named 'gremlin'.*greedy_draft_softmax_q, .*uniform_zero, "):
        get_fault("gremlin")


def test_a_fault_that_cannot_show_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot show with a one_hot drafter.*kind dense"):
        get_fault("greedy_draft_softmax_q", DrafterKind.ONE_HOT)


@pytest.mark.parametrize("name", list(FAULTS))
def test_faults_leave_broken_rows_broken(name: str) -> None:
    fault = FAULTS[name]
    rows = torch.full((1, 2, 5), torch.nan)
    drafts, length, uniforms = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), torch.zeros(1, 2)
    assert fault.wrap_draw(draw)(rows[0], uniforms[0]).tokens.tolist() == [INVALID] * 2
    found = fault.wrap_verify(verify)(rows, drafts, length, None, uniforms[:, :1], uniforms)
    assert found.next_token.item() == INVALID


def test_wrapped_drafters_keep_their_kind_but_for_the_control_that_hides_its_rows() -> None:
    for name, fault in FAULTS.items():
        wrapped = fault.inject(CLEAN).drafter(NgramDrafter(2, 3))
        assert wrapped.kind is DrafterKind.ONE_HOT
        hidden = type("Dense", (), {"kind": DraftModelDrafter.kind})()
        assert (fault.inject(CLEAN).drafter(hidden).kind is DrafterKind.ONE_HOT) == (name == "draft_as_one_hot")
