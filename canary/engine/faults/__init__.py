"""Known bugs of real engines, as wrappers, for drills and tests: a drill that is not caught means that a pass proves nothing.

A fault reaches an engine only by name, as the subject of a drill's policy; its name is part of the epoch, and a drill never takes
traffic. What each one is and who should see it stands in `domain.catalogue`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from canary.domain.catalogue import CATALOGUE, FaultEntry
from canary.domain.errors import UsageError
from canary.domain.pairs import DrafterKind
from canary.engine.faults import drafting, draws, judging, loop, penalties, randomness, rows, structure, telling
from canary.engine.faults.judging import Inject
from canary.engine.hooks import Hooks
from canary.engine.sampling import Draw
from canary.engine.streams import Stream
from canary.engine.verify import Verify

INJECTIONS: Mapping[str, Inject] = {
    "greedy_draft_softmax_q": draws.in_draw(draws.greedy_draft),
    "top_k_draft_raw_q": draws.in_draw(draws.top_k_draft),
    "cold_draft": draws.tempered_draft(0.5, reported=False),
    "hot_draft": draws.tempered_draft(1.25, reported=False),
    "shifted_draft_q": judging.in_verify(judging.shifted_draft_q),
    "off_by_one_rows": judging.in_verify(judging.off_by_one_rows),
    "greedy_verify": judging.in_verify(judging.greedy_verify),
    "accept_iff_argmax": judging.in_verify(judging.accept_iff_argmax),
    "accept_if_equal": judging.in_verify(judging.accept_if_equal),
    "uniform_zero": judging.in_verify(judging.uniform_zero),
    "drafts_unjudged": judging.in_verify(judging.drafts_unjudged),
    "one_hot_accept_dense_residual": judging.in_verify(judging.one_hot_accept),
    "dense_accept_one_hot_residual": judging.in_verify(judging.one_hot_residual),
    "resample_from_target": judging.in_verify(judging.resample_from_target),
    "residual_argmax": judging.in_verify(judging.residual_argmax),
    "typical_acceptance": judging.in_verify(judging.typical_acceptance),
    "lenient_acceptance": judging.in_verify(judging.lenient_acceptance),
    "generous_acceptance": judging.in_verify(judging.generous_acceptance),
    "unguarded_residual": judging.in_verify(judging.unguarded_residual),
    "bonus_temperature": judging.in_verify(judging.bonus_temperature),
    "bonus_from_draft": judging.in_verify(judging.bonus_from_draft),
    "requests_from_draft": randomness.in_requests(0.02, randomness.unjudged),
    "requests_from_draft_rare": randomness.in_requests(0.01, randomness.unjudged),
    "requests_shifted": randomness.in_requests(0.01, judging.shifted),
    "seed_reset": randomness.keyed(randomness.one_key),
    "batch_order_draws": randomness.keyed(randomness.key_of_row),
    "swapped_draws": judging.in_verify(judging.swapped_draws),
    "accept_uniform_reused": judging.in_verify(judging.accept_uniform_reused),
    "draft_uniform_reused": randomness.as_draft(Stream.ACCEPT),
    "shared_noise": randomness.shared_noise,
    "temperature_ignored": rows.with_rows(rows.without_temperature),
    "filters_ignored": rows.with_rows(rows.without_filters),
    "bonus_parameters_ignored": rows.bonus_parameters_ignored,
    "min_p_ignored": rows.with_rows(rows.without_min_p),
    "penalties_ignored": penalties.penalties_ignored,
    "bias_on_bonus_only": penalties.bias_on_bonus_only,
    "penalties_frozen": penalties.penalties_frozen,
    "rejected_drafts_counted": penalties.rejected_drafts_counted,
    "min_tokens_short": penalties.min_tokens_short,
    "chunk_read_from_last_token": structure.chunk_read_from_last_token,
    "end_tested_on_last_only": loop.ending(loop.end_tested_on_last_only),
    "length_tested_first": loop.ending(loop.length_tested_first),
    "drafts_leak_past_end": loop.ending(loop.drafts_leak_past_end),
    "logprobs_zero": telling.in_table(telling.zero),
    "logprobs_of_next_row": telling.in_table(telling.of_next_row),
    "token_fed_twice": loop.token_fed_twice,
    "short_crop": loop.advancing(loop.short_crop),
    "longest_length": loop.advancing(loop.longest_length),
    "rejected_kept": loop.advancing(loop.rejected_kept),
    "rejected_kept_sometimes": loop.advancing(loop.rejected_kept_sometimes),
    "rejected_kept_late": loop.advancing(loop.rejected_kept_late),
    "nan_rows": rows.changed(rows.nan_rows),
    "permuted_draft_ids": drafting.wrapping(drafting.OtherVocabulary),
    "bonus_counted": loop.counting(loop.bonus_counted),
    "biased_counts": loop.counting(loop.biased_counts),
    "counted_past_end": loop.ending(loop.counted_past_end),
    "draft_window_truncated": drafting.wrapping(drafting.ShortWindow),
    "draft_misses_bonus": drafting.wrapping(drafting.MissedBonus),
    "slow_draft": drafting.wrapping(drafting.Slow),
    "quadratic_lookup": drafting.wrapping(drafting.Quadratic),
    "cold_draft_reported": draws.tempered_draft(0.5, reported=True),
    "draft_as_one_hot": drafting.wrapping(drafting.AsOneHot),
    "ulp_noise": rows.changed(rows.ulp_noise),
    "bfloat16_rows": rows.changed(rows.bfloat16_rows),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One injectable bug: what is known about it, and how it gets into an engine.

    Args:
        entry: its entry in the catalogue.
        inject: faulty hooks from clean ones; what it remembers belongs to those hooks alone.
    """

    entry: FaultEntry
    inject: Inject

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def applies_to(self) -> frozenset[DrafterKind]:
        """Drafter kinds that it can show with."""
        return self.entry.kinds

    def wrap_verify(self, verify: Verify) -> Verify:
        """The faulty `verify` alone, for tests without a loop."""
        return self.inject(Hooks(verify=verify)).verify

    def wrap_draw(self, draw: Draw) -> Draw:
        """The faulty `draw` of the drafter alone."""
        return self.inject(Hooks(draw=draw)).draw


FAULTS: dict[str, Fault] = {name: Fault(entry, INJECTIONS[name]) for name, entry in CATALOGUE.items()}


def get_fault(name: str, kind: DrafterKind | None = None) -> Fault:
    """Look a fault up by name.

    Args:
        kind: the drafter that it will be injected into, if known.

    Raises:
        UsageError: there is no such fault, or it cannot show with that kind of drafter.
    """
    fault = FAULTS.get(name)
    if fault is None:
        raise UsageError(f"there is no fault named {name!r}.", remedy=f"Use one of: {', '.join(FAULTS)}.", where="fault")
    if kind is not None and kind not in fault.applies_to:
        kinds = ", ".join(sorted(fault.applies_to))
        raise UsageError(
            f"fault {name!r} cannot show with a {kind} drafter.", remedy=f"Use a drafter of kind {kinds}.", where="fault"
        )
    return fault
