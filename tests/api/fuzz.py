"""Schemathesis over the whole document, on an application with keys and a store in memory."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase, strategies
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from canary.api import ofrep
from canary.domain.access import MAY, Role
from canary.domain.rollout import State
from canary.domain.traffic import pair_id
from canary.inmemory import InMemoryStore
from tests.api.keyed import application, bearer, key_for
from tests.api.served import NOW, Notes, add_route, decide_now
from tests.store import samples

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
)


PAIR = pair_id("gateway", "request-0", "math", "epoch-1", 1)
KNOWN = {"route": "math", "key": "specdec.math", "unit": "tenant-1", "name": "retention", "pair_id": PAIR}


def disagreements(*, examples: int, seed: int, only: str = "") -> list[str]:
    """What requests at random found, one sentence each; the same for the same seed.

    Args:
        examples: requests per operation, legal ones and as many illegal ones.
        only: a part of the operations' paths.
    """
    store = InMemoryStore()
    for route in ("math", "creative"):
        add_route(store, route)
        decide_now(store, route)
    _under_way(store)
    headers = bearer(key_for(store, Role.ADMIN, scopes=tuple(MAY[Role.ADMIN])))
    # A stream that goes on for ever has no answer that could be looked at.
    with patch.object(ofrep, "LONGEST_SECONDS", 0.01):
        app = application(store, notes=Notes())
    config = SchemathesisConfig()
    rejected = config.projects.default.checks.negative_data_rejection
    rejected.expected_statuses = [*rejected.expected_statuses, "413"]  # a text over its length may be a body over its length
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, config=config)
    found: list[str] = []
    for result in schema.get_all_operations():
        operation = result.ok()
        if only not in operation.path:
            continue
        for mode in GenerationMode:
            found += _one(operation, mode, headers, examples, seed)
    return found


def _under_way(store: InMemoryStore) -> None:
    """Give `math` a stage with traffic, a pair, and somewhere to go."""
    with store.transaction() as tx:
        rollout = tx.rollouts.get("math")
        assert rollout is not None
        tx.rollouts.put(replace(rollout, state=State.CANARY, stage=1, version=rollout.version + 1))
        tx.prompts.add_many([samples.prompt(0)], NOW)
        (claim,) = tx.claims.claim(rollout, limit=1, before_ordinal=None, worker="w", now=NOW, lease_seconds=60, max_retries=1)
        assert claim.pair_id == PAIR
        tx.pairs.add(samples.pair(claim), NOW)
        assert tx.claims.finish(claim, failed=False)
        tx.commit()


def _meant(case: Any) -> None:
    """Make a legal request be about what there is: at random it would name nothing that exists."""
    for name in case.path_parameters or {}:
        case.path_parameters[name] = KNOWN.get(name, case.path_parameters[name])
    if case.method != "GET":
        case.headers = {**(case.headers or {}), "If-Match": "*"}


def _one(operation: Any, mode: GenerationMode, headers: dict[str, str], examples: int, seed: int) -> list[str]:
    """One operation's disagreements."""
    found: list[str] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), meant=strategies.booleans())
    def requests(case: Any, meant: bool) -> None:
        if meant and mode is GenerationMode.POSITIVE:
            _meant(case)
        try:
            answer = case.call(headers=headers)
            case.validate_response(answer, checks=list(CHECKS), headers=headers)
        except FailureGroup as failures:
            found.extend(f"{operation.label} ({mode.value}): {failure}" for failure in failures.exceptions)
        except Exception as error:
            found.append(f"{operation.label} ({mode.value}): {error!r}")

    # Of an operation that takes nothing there is no illegal request to make.
    with contextlib.suppress(Unsatisfiable):
        requests()
    return found
