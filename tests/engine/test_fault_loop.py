"""Faults inside the loop show where the catalogue says: in rows, in identities, in acceptance; harmless controls show nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from canary.domain.errors import IdentityError
from canary.domain.pairs import ROW_COLUMNS, Columns
from canary.engine.decode import Decoder
from canary.engine.faults import FAULTS
from canary.engine.forward import RowForward
from canary.engine.hooks import CLEAN, Hooks
from canary.engine.requests import Running
from canary.engine.score import score
from tests.engine.tiny import DRAFTERS, EOS, decoder, job, prompts, run_all, tiny_model, tiny_tokenizer

FAR = 0.2
MODEL = tiny_model(eos=False, loopy=True)
PROMPTS = prompts(4, seed=3, shortest=8)


def faulty(name: str | None, drafter: str = "ngram", *, k: int = 4, eos_ids: frozenset[int] = frozenset()) -> Decoder:
    hooks = Hooks() if name is None else FAULTS[name].inject(CLEAN)
    target = RowForward(MODEL, 4)
    proposing = DRAFTERS[drafter](MODEL, target)
    assert proposing is not None
    return Decoder(target, tiny_tokenizer(), eos_ids, hooks.drafter(proposing), k, hooks=hooks)


def answers(loop: Decoder, max_tokens: int = 24, **params: object) -> list[Running]:
    return run_all(loop, [job(i, p, max_tokens, **params) for i, p in enumerate(PROMPTS)], traced=True)


def distances(done: Sequence[Running]) -> np.ndarray:
    """Distance of every token's rows from the reference, all requests in a row."""
    found = []
    for running in done:
        assert running.record is not None
        ids = running.job.token_ids
        kept = running.record
        found.append(
            column(score(MODEL, ids, running.token_ids, kept.rows(), running.job.params, kept.processed_rows()), "row_tv")
        )
    return np.concatenate(found)


def column(columns: Columns, name: str) -> np.ndarray:
    return np.frombuffer(columns.data[name], dtype=ROW_COLUMNS[name][0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["token_fed_twice", "short_crop", "longest_length", "rejected_kept", "rejected_kept_sometimes"])
def test_a_faulty_cache_moves_rows_far_from_the_reference(name: str, temperature: float) -> None:
    assert (distances(answers(faulty(name), temperature=temperature)) > FAR).mean() > 0.01


def test_a_late_fault_shows_late() -> None:
    done = answers(faulty("rejected_kept_late"), 80, temperature=1.0)
    found = distances(done).reshape(len(done), 80)
    assert (found[:, :48] < 1e-3).all()
    assert (found[:, 50:] > FAR).any()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", [None, "ulp_noise", "bfloat16_rows"])
def test_numerics_are_no_fault(name: str | None, temperature: float) -> None:
    assert distances(answers(faulty(name), temperature=temperature)).max() < 0.05


@pytest.mark.parametrize("name", ["temperature_ignored", "filters_ignored", "bonus_parameters_ignored"])
def test_dropped_parameters_fail_the_check_of_processed_rows(name: str) -> None:
    found = distances(answers(faulty(name), temperature=0.5, top_p=0.8))
    assert (found == 1).mean() > 0.005
    assert (distances(answers(faulty(name), temperature=1.0)) < 0.05).all()


@pytest.mark.parametrize("name", ["end_tested_on_last_only", "length_tested_first", "drafts_leak_past_end"])
def test_a_missed_end_breaks_the_replay_of_the_end(name: str) -> None:
    ends = frozenset(range(3, 97, 4))
    clean = answers(faulty(None, "target_itself", eos_ids=ends), 6)
    assert any(d.num_cut for d in clean)
    loop = faulty(name, "target_itself", eos_ids=ends)
    with pytest.raises(IdentityError, match="ends the answer, but others follow it"):
        answers(loop, 6)


def test_a_missed_stop_string_breaks_the_replay_too() -> None:
    words = tiny_tokenizer()
    (free,) = run_all(faulty(None, "target_itself"), [job(0, PROMPTS[1], 20)])
    stop = words.decode(free.token_ids[1:2])
    with pytest.raises(IdentityError, match="a stop string is complete before the last"):
        run_all(faulty("drafts_leak_past_end", "target_itself"), [job(0, PROMPTS[1], 20, stop=(stop,))])


@pytest.mark.parametrize("name", ["bonus_counted", "biased_counts"])
def test_wrong_counts_break_an_identity(name: str) -> None:
    with pytest.raises(IdentityError):
        answers(faulty(name))


def test_counts_past_the_end_break_an_identity() -> None:
    with pytest.raises(IdentityError, match=r"accepted \+ steps - cut"):
        answers(faulty("counted_past_end", "target_itself", eos_ids=frozenset(range(3, 97, 4))), 6)


def test_the_replay_of_the_end_passes_clean_answers_of_every_kind() -> None:
    loop = decoder(tiny_model(), "ngram")
    done = run_all(loop, [job(i, p, 12, stop=("q", "zz"), temperature=1.0) for i, p in enumerate(PROMPTS)])
    assert {d.finish_reason for d in done} <= {"stop", "length"}
    for running in done:
        running.check_end(frozenset({EOS}), tiny_tokenizer())


def test_rows_that_are_not_a_number_fail_their_request_alone() -> None:
    done = answers(faulty("nan_rows"))
    assert any(d.error for d in done)
    assert all("not a distribution" in (d.error or "not a distribution") for d in done)


def texts(loop: Decoder, max_tokens: int = 24) -> list[Running]:
    """Greedy answers without a trace, which needs no probabilities."""
    return run_all(loop, [job(i, p, max_tokens) for i, p in enumerate(PROMPTS)])


def acceptance(done: Sequence[Running]) -> float:
    return sum(map(sum, (d.accepted for d in done))) / sum(map(sum, (d.drafted for d in done)))


@pytest.mark.parametrize(
    ("name", "drafter"),
    [
        ("permuted_draft_ids", "ngram"),
        ("permuted_draft_ids", "target_itself"),
        ("draft_misses_bonus", "target_itself"),
        ("draft_window_truncated", "draft_model"),
    ],
)
def test_a_worse_draft_costs_acceptance_and_changes_no_text(name: str, drafter: str) -> None:
    clean, worse = texts(faulty(None, drafter)), texts(faulty(name, drafter))
    assert [d.token_ids for d in clean] == [d.token_ids for d in worse]
    assert acceptance(worse) < 0.8 * acceptance(clean)


@pytest.mark.parametrize("name", ["slow_draft", "quadratic_lookup", "draft_as_one_hot", "cold_draft_reported"])
def test_slow_and_harmless_drafters_change_no_text(name: str) -> None:
    clean, same = texts(faulty(None, "draft_model"), 8), texts(faulty(name, "draft_model"), 8)
    assert [d.token_ids for d in clean] == [d.token_ids for d in same]


def test_swapped_draws_show_in_a_batch_and_not_alone() -> None:
    alone = [run_all(faulty("swapped_draws"), [job(0, PROMPTS[0], 12)])[0].token_ids]
    assert alone == [run_all(faulty(None), [job(0, PROMPTS[0], 12)])[0].token_ids]
    assert [d.token_ids for d in answers(faulty("swapped_draws"), 12)] != [d.token_ids for d in answers(faulty(None), 12)]


def test_hooks_that_a_fault_leaves_alone_stay_clean() -> None:
    def changed(name: str) -> list[str]:
        hooks = FAULTS[name].inject(CLEAN)
        return [field for field in Hooks.__dataclass_fields__ if getattr(hooks, field) != getattr(CLEAN, field)]

    assert changed("resample_from_target") == ["verify"]
    assert changed("rejected_kept") == ["advance"]
    assert changed("shared_noise") == ["verify", "draw", "uniforms"]
    assert all(changed(name) for name in FAULTS)
