"""Schemathesis over the whole document, on an application with keys and a store in memory."""

from __future__ import annotations

import contextlib
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
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

from canary.domain.access import Role
from canary.inmemory import InMemoryStore
from tests.api.keyed import application, bearer, key_for
from tests.api.served import Notes, add_route, decide_now

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
)


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
    headers = bearer(key_for(store, Role.ADMIN))
    app = application(store, notes=Notes())
    config = SchemathesisConfig()
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, config=config)
    found: list[str] = []
    for result in schema.get_all_operations():
        operation = result.ok()
        if only not in operation.path:
            continue
        for mode in GenerationMode:
            found += _one(operation, mode, headers, examples, seed)
    return found


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
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def requests(case: Any) -> None:
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
