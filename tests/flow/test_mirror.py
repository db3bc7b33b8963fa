"""Reading mirrored bodies strictly, and keeping a share of them once each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canary.domain.errors import RequestError, TooLargeError, UnsupportedRequestError
from canary.domain.flag import bucket
from canary.domain.traffic import Prompt, SamplingParams, Stratum
from canary.flow.tools.body_fields import IGNORED, NEUTRAL, UNDERSTOOD
from canary.flow.walk.mirror import DEFAULT_MAX_TOKENS, Accepted, accept, kept, read_request
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, add_route
from tests.edge.bad_bodies import BAD, CHAT, COMPLETIONS, SECRET, chat, completion

GOLDEN = Path(__file__).parent / "golden_bad_bodies.txt"


def read(body: bytes, endpoint: str = CHAT, request_id: str = "r", route: str = "math", max_body: int = 1 << 20) -> Prompt:
    return read_request(body, route=route, endpoint=endpoint, source="gw", request_id=request_id, max_body=max_body)


def refused(body: bytes, endpoint: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(body, endpoint)
    return caught.value


@pytest.mark.parametrize(("name", "endpoint", "body", "code", "where"), BAD, ids=[row[0] for row in BAD])
def test_bad_bodies_are_refused_with_code_pointer_and_remedy(
    name: str, endpoint: str, body: bytes, code: str, where: str
) -> None:
    error = refused(body, endpoint)
    assert (error.code, error.where) == (code, where)
    assert error.remedy
    assert SECRET not in json.dumps(error.problem()), "an error never repeats what was sent"


def test_the_sentences_of_bad_bodies_are_golden() -> None:
    lines = [f"{name}: {refused(body, endpoint)}" for name, endpoint, body, _, _ in BAD]
    assert lines == GOLDEN.read_text().splitlines()


def test_the_size_limit_is_exact() -> None:
    body = chat()
    assert read(body, max_body=len(body)).body == body
    with pytest.raises(TooLargeError, match=str(len(body) - 1)):
        read(body, max_body=len(body) - 1)


def test_bytes_are_kept_and_defaults_are_stated() -> None:
    body = b'{ "messages" : [ {"content":"\\u0000 \\\\u0000 \\ud83d\\ude00", "role":"user"} ] , "model":"a", "model":"b" }'
    prompt = read(body)
    assert prompt.body == body
    assert prompt.messages[0].content == "\x00 \\u0000 \U0001f600"
    assert (prompt.params.temperature, prompt.params.top_p, prompt.params.top_k) == (1.0, 1.0, 0)
    assert prompt.params.max_tokens == DEFAULT_MAX_TOKENS
    assert prompt.params.seed is None
    assert prompt.params.stratum is Stratum.SAMPLED


def test_parameters_are_understood() -> None:
    fields = {"temperature": 0, "top_p": 0.9, "top_k": 40, "max_completion_tokens": 7, "stop": "END", "seed": -3, "stream": True}
    prompt = read(chat(**fields, n=1, tools=[], logit_bias={}, user="u", stream_options={"include_usage": True}))
    params = prompt.params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.0, 0.9, 40, 7)
    assert (params.stop, params.seed, params.stratum) == (("END",), -3, Stratum.GREEDY)
    assert read(chat(top_k=-1)).params.top_k == 0
    assert read(chat(max_tokens=9, max_completion_tokens=9)).params.max_tokens == 9
    assert read(chat(stop=["a", "b"], temperature=None, seed=None)).params.stop == ("a", "b")


def test_everything_that_changes_logits_or_ends_an_answer_is_understood() -> None:
    fields = {
        "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 2,
        "logit_bias": {"5": -100, "12": 1.5}, "bad_words": ["a b", " c"], "min_tokens": 3, "stop_token_ids": [7, 8],
        "ignore_eos": True, "n": 4,
    }  # fmt: skip
    params = read(chat(**fields, max_tokens=9, logprobs=True, top_logprobs=5)).params
    found = (params.min_p, params.typical_p, params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    assert found == (0.1, 0.9, 1.2, -0.5, 2.0)
    assert params.logit_bias == ((5, -100.0), (12, 1.5))
    assert (params.bad_words, params.stop_token_ids) == (("a b", " c"), (7, 8))
    assert (params.min_tokens, params.ignore_eos, params.n, params.logprobs) == (3, True, 4, 5)
    assert params.shaped
    assert params.filtered
    assert SamplingParams.from_json(json.loads(json.dumps(asdict(params)))) == params


def test_neutral_values_ask_for_nothing() -> None:
    none = {"logit_bias": None, "bad_words": [], "stop_token_ids": [], "n": None, "min_tokens": 0, "logprobs": False}
    params = read(chat(min_p=0, typical_p=1, repetition_penalty=1, presence_penalty=0, frequency_penalty=0.0, **none)).params
    assert params == read(chat()).params
    assert not params.shaped
    assert not params.filtered
    assert read(completion(logprobs=0), COMPLETIONS).params.logprobs == 0
    assert read(chat(logprobs=True)).params.logprobs == 0


def test_a_completion_has_a_text_and_a_chat_has_messages() -> None:
    plain = read(completion(), COMPLETIONS)
    assert (plain.text, plain.messages) == (SECRET, ())
    both = read(
        json.dumps({"messages": [{"role": "system", "content": ""}, {"role": "assistant", "content": "x", "name": "n"}]}).encode()
    )
    assert both.text is None
    assert [(m.role, m.content) for m in both.messages] == [("system", ""), ("assistant", "x")]


def test_unsupported_is_a_kind_of_request_error_with_its_own_status() -> None:
    with pytest.raises(UnsupportedRequestError) as caught:
        read(chat(best_of=3))
    assert (caught.value.status, RequestError("x").status) == (422, 400)


def prompts(count: int, route: str = "math") -> list[Prompt]:
    return [read(chat(), request_id=f"id-{at}", route=route) for at in range(count)]


def test_accept_keeps_each_request_once() -> None:
    store = InMemoryStore()
    add_route(store, "math")
    batch = prompts(3)
    assert accept(store, [*batch, batch[1]], NOW) == [Accepted.ACCEPTED] * 3 + [Accepted.DUPLICATE]
    assert accept(store, batch[:1], NOW + 1) == [Accepted.DUPLICATE]
    assert accept(store, [], NOW) == []
    with store.transaction() as tx:
        assert tx.prompts.count("math") == 3


def test_an_unknown_route_stores_nothing_and_harms_nobody() -> None:
    store = InMemoryStore()
    add_route(store, "math")
    states = accept(store, [*prompts(1), *prompts(1, "elsewhere")], NOW)
    assert states == [Accepted.ACCEPTED, Accepted.UNKNOWN_ROUTE]
    with store.transaction() as tx:
        assert (tx.prompts.count("math"), tx.prompts.count("elsewhere")) == (1, 0)


def test_the_mirrored_share_is_fixed_by_the_id_and_grows_with_the_rate() -> None:
    batch = prompts(4000)
    shares = {rate: {p.request_id for p in batch if kept(p, rate)} for rate in (0.0, 0.1, 0.3, 1.0)}
    assert shares[0.0] == set()
    assert shares[0.1] < shares[0.3] < shares[1.0]
    assert len(shares[1.0]) == 4000
    assert 320 <= len(shares[0.1]) <= 480  # 400 +- 4 standard deviations
    store = InMemoryStore()
    add_route(store, "math", mirror_rate=0.1)
    states = accept(store, batch[:500], NOW)
    assert {p.request_id for p, s in zip(batch, states, strict=False) if s is Accepted.ACCEPTED} == shares[0.1] & {
        p.request_id for p in batch[:500]
    }
    assert states.count(Accepted.SAMPLED_OUT) == 500 - states.count(Accepted.ACCEPTED)


def test_being_mirrored_says_nothing_about_the_flag() -> None:
    batch = prompts(8000)
    mirrored = [p for p in batch if kept(p, 0.25)]
    in_share = sum(bucket("specdec.math", p.request_id) < 5000 for p in mirrored)
    assert abs(in_share - len(mirrored) / 2) < 4 * (len(mirrored) / 4) ** 0.5


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user", "assistant", "tool"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = sorted([*UNDERSTOOD, *NEUTRAL, *IGNORED, "unknown"])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.sampled_from([CHAT, COMPLETIONS]), st.booleans())
def test_any_json_is_understood_or_refused(fields: dict[str, object], endpoint: str, legal_otherwise: bool) -> None:
    needed = {"messages": [{"role": "user", "content": "x"}]} if endpoint == CHAT else {"prompt": "x"}
    body = json.dumps({**(needed if legal_otherwise else {}), **fields}).encode()
    try:
        prompt = read(body, endpoint)
    except RequestError:
        return
    assert prompt.body == body
    assert prompt.params.max_tokens >= 1
    assert bool(prompt.messages) != bool(prompt.text)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=40))
def test_any_bytes_are_refused_with_a_remedy(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read(body)
    assert caught.value.remedy
