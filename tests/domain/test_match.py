"""Which requests the flag takes: what is not known of one leaves it out."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from canary.domain.match import EVERYTHING, Match, takes
from canary.domain.modes import Mode, StratumMode
from canary.domain.stage_policy import EVENTS, NotifyTarget, told
from tests.domain.situations import POLICY

CHAT, PLAIN = "chat/completions", "completions"


@pytest.mark.parametrize(
    ("match", "taken", "left"),
    [
        (Match(endpoints=(CHAT,)), (CHAT, 1.0, True), (PLAIN, 1.0, True)),
        (Match(strata=("greedy",)), (CHAT, 0.0, False), (CHAT, 0.1, False)),
        (Match(strata=("sampled",)), (CHAT, 0.1, False), (CHAT, 0.0, False)),
        (Match(stream="only"), (CHAT, 1.0, True), (CHAT, 1.0, False)),
        (Match(stream="never"), (CHAT, 1.0, False), (CHAT, 1.0, True)),
        (Match(max_temperature=0.7), (CHAT, 0.7, True), (CHAT, 0.71, True)),
    ],
)
def test_a_rule_takes_and_leaves(match: Match, taken: tuple[str, float, bool], left: tuple[str, float, bool]) -> None:
    assert match.takes(*taken)
    assert not match.takes(*left)
    assert not match.takes(None, None, None)
    assert takes(match.to_json(), dict(zip(("endpoint", "temperature", "stream"), taken, strict=True)))
    assert not takes(match.to_json(), dict(zip(("endpoint", "temperature", "stream"), left, strict=True)))
    assert not takes(match.to_json(), None)


def test_no_rule_takes_what_is_not_even_known() -> None:
    assert EVERYTHING.everything
    assert EVERYTHING.to_json() == {}
    assert EVERYTHING.takes(None, None, None)
    assert takes({}, None)


@pytest.mark.parametrize("odd", [{"temperature": True}, {"temperature": "0"}, {"stream": 1}, {"endpoint": 3}, {}])
def test_odd_requests_and_odd_rules_are_left_out(odd: dict[str, object]) -> None:
    whole = Match((CHAT,), ("greedy",), "only", 0.5).to_json()
    assert not takes(whole, {"endpoint": CHAT, "temperature": 0.0, "stream": True} | odd) or not odd
    assert not takes({"newer": 1}, {"endpoint": CHAT})


def test_the_mirror_keeps_what_the_flag_takes_and_a_stratum_that_is_watched() -> None:
    narrow = replace(POLICY, match=Match(strata=("greedy",), stream="only"))
    watching = replace(narrow, gates=replace(POLICY.gates, strata=(StratumMode("sampled", Mode.OBSERVE, "rare"),)))
    watching.check()
    for temperature, stream in itertools.product((0.0, 1.0), (True, False)):
        assert POLICY.mirrors(CHAT, temperature, stream)
        assert narrow.mirrors(CHAT, temperature, stream) == (temperature == 0 and stream)
        assert watching.mirrors(CHAT, temperature, stream) == stream
    assert watching.gates.mode_of("bank_certificate") is Mode.OBSERVE
    assert watching.gates.mode_of("gap_certificate") is Mode.REQUIRED
    assert watching.gates.mode_of("row_gate") is Mode.REQUIRED


def test_who_is_told_of_an_event() -> None:
    targets = (NotifyTarget("oncall", ("kill",)), NotifyTarget("team"))
    assert told(targets, "kill") == ("oncall", "team")
    assert told(targets, "stage") == ("team",)
    with pytest.raises(ValueError, match="unknown event 'kills'"):
        told(targets, "kills")
    assert {"stage", "verdict", "kill", "drill", "budget", "coverage"} <= set(EVENTS)
