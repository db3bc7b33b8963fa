"""Where answers end with stop ids, ignored EOS and minimum lengths; several answers to one request."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from canary.domain.errors import IdentityError
from canary.engine.requests import choices
from tests.engine.tiny import EOS, decoder, job, prompts, run_all, tiny_model, tiny_tokenizer

WORDS = tiny_tokenizer()
MODEL: PreTrainedModel = tiny_model("llama", eos=False)
PROMPT = prompts(1, seed=9, shortest=6)[0]
DRAFTING = ["none", "ngram", "target_itself"]


def free(length: int = 16) -> list[int]:
    return run_all(decoder(MODEL), [job(0, PROMPT, length)])[0].token_ids


@pytest.mark.parametrize("drafter", DRAFTING)
def test_a_stop_id_ends_the_answer_and_is_no_part_of_its_text(drafter: str) -> None:
    said = free()
    at = next(i for i in range(3, 12) if said[i] not in said[:i])
    (done,) = run_all(decoder(MODEL, drafter), [job(0, PROMPT, 16, stop_token_ids=(said[at],))])
    assert (done.token_ids, done.finish_reason) == (said[: at + 1], "stop")
    assert done.text(WORDS) == WORDS.decode(said[:at], skip_special_tokens=True)


@pytest.mark.parametrize("drafter", DRAFTING)
def test_eos_may_be_ignored_and_a_stop_id_still_counts(drafter: str) -> None:
    said = free()
    loop = decoder(MODEL, drafter)
    loop.eos_ids = frozenset({said[4]})
    ended, ignored, stopped = run_all(
        loop,
        [
            job(0, PROMPT, 16),
            job(1, PROMPT, 16, ignore_eos=True),
            job(2, PROMPT, 16, ignore_eos=True, stop_token_ids=(said[4],)),
        ],
    )
    first = said.index(said[4]) + 1
    assert (len(ended.token_ids), ended.finish_reason) == (first, "stop")
    assert (ignored.token_ids, ignored.finish_reason) == (said, "length")
    assert stopped.token_ids == ended.token_ids


@pytest.mark.parametrize("drafter", DRAFTING)
def test_a_stop_string_within_the_minimum_length_does_not_count(drafter: str) -> None:
    said = free()
    text = WORDS.decode(said, skip_special_tokens=True)
    early, late = text[1:3], text[8:10]
    (done,) = run_all(decoder(MODEL, drafter), [job(0, PROMPT, 16, stop=(early, late), min_tokens=5)])
    end = min(at for at in (text.find(early, 4), text.find(late, 4)) if at >= 0)
    assert done.token_ids == said[: end + 2]
    assert done.text(WORDS) == text[:end]


def test_an_end_before_the_minimum_breaks_the_replay() -> None:
    (done,) = run_all(decoder(MODEL), [job(0, PROMPT, 16, stop_token_ids=tuple(range(3, 97, 2)), min_tokens=3)])
    assert len(done.token_ids) > 3
    done.check_end(frozenset({EOS}), WORDS)
    del done.token_ids[1:-1]
    with pytest.raises(IdentityError, match="nothing may before 3 tokens"):
        done.check_end(frozenset({EOS}), WORDS)


def test_every_choice_has_draws_of_its_own_and_the_first_has_the_requests() -> None:
    asked = job(3, PROMPT, 16, temperature=1.0, n=4)
    each = choices(asked)
    assert [c.choice for c in each] == [0, 1, 2, 3]
    assert each[0] == asked
    assert len({c.key for c in each}) == 4
    assert each == choices(asked)
    loop = decoder(MODEL, "ngram")
    answers = [run_all(loop, [c])[0].token_ids for c in each]
    assert len({tuple(a) for a in answers}) == 4
    assert run_all(loop, [job(3, PROMPT, 16, temperature=1.0)])[0].token_ids == answers[0]
    assert choices(job(3, PROMPT, 16)) == (job(3, PROMPT, 16),)
