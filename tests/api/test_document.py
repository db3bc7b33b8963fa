"""The API's document against the API: random legal and illegal requests, and not one answer that it does not describe."""

from __future__ import annotations

import json

import pytest

from canary.api.actions import ACTIONS
from canary.api.idempotency import UNKEPT
from canary.domain.access import ANYBODY
from canary.domain.errors import CanaryError
from canary.flow.tools import reports
from canary.inmemory import InMemoryStore
from tests.api.fuzz import disagreements
from tests.api.keyed import application, client


class Undocumented(CanaryError):
    """An answer that no document knows."""

    status = 418


def test_requests_at_random_are_answered_as_documented() -> None:
    """No server error, no undocumented status or shape, and no illegal request accepted."""
    assert disagreements(examples=2, seed=1) == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (RuntimeError("a bug"), "a bug"),
        (Undocumented("x"), "Undocumented status code"),
    ],
)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, planted: Exception, said: str) -> None:
    def fail(*given: object) -> object:
        raise planted

    monkeypatch.setattr(reports, "overview", fail)
    found = disagreements(examples=1, seed=1, only="/api/v1/rollouts")
    assert any(said in one for one in found), found


def test_the_document_names_everything() -> None:
    document = application(InMemoryStore()).openapi()
    json.dumps(document, allow_nan=False)
    assert "HTTPValidationError" not in json.dumps(document)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            entry = ACTIONS[name]
            assert operation["x-canary-action"] == entry.action.value
            assert bool(operation.get("security")) == (entry.action not in ANYBODY), name
            assert operation.get("description"), name
            assert {"400", "401", "403", "404", "405", "500", "503"} <= set(operation["responses"]), name
            for status, answer in operation["responses"].items():
                if status >= "400":
                    worded = {"application/json"} if path.startswith("/ofrep/") else set()  # the protocol's own errors
                    assert {"application/problem+json"} <= set(answer["content"]) <= {"application/problem+json"} | worded, name
            if method != "get":
                kept = entry.action not in UNKEPT
                assert ({"409", "413", "422"} <= set(operation["responses"])) or path.startswith("/ofrep/"), name
                assert ("Idempotency-Key" in [p["name"] for p in operation.get("parameters", ())]) == kept, name


def test_the_document_has_what_no_framework_describes() -> None:
    """OFREP's single and bulk evaluation, its events, and the snapshot, each with every status that it answers."""
    paths = application(InMemoryStore()).openapi()["paths"]
    common = {"200", "400", "401", "403", "404", "405", "500", "503"}
    assert set(paths["/ofrep/v1/evaluate/flags/{key}"]["post"]["responses"]) == common | {"413", "429"}
    assert set(paths["/ofrep/v1/evaluate/flags"]["post"]["responses"]) == common | {"304", "413", "429"}
    assert set(paths["/ofrep/v1/events"]["get"]["responses"]) == common
    snapshot = paths["/api/v1/flags/snapshot"]["get"]["responses"]
    assert set(snapshot) == common | {"304"}
    assert set(snapshot["200"]["headers"]) == {"ETag", "Age", "Canary-Age"}


@pytest.mark.parametrize("path", ["/api/v1/openapi.json", "/schemas/policy.json", "/healthz"])
def test_what_anybody_may_read(path: str) -> None:
    with client(InMemoryStore()) as caller:
        answer = caller.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
