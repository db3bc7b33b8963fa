"""A service with one route in every state that endpoints care about, and one key of every kind, for the tests of access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient

from canary.api.app import create_app
from canary.domain.access import Action, Role
from canary.flow.ports import Store
from canary.flow.tools.keys import create_key
from tests.api.served import NOW, Notes


def key_for(store: Store, role: Role, owner: str = "", *, scopes: tuple[Action, ...] = (), routes: tuple[str, ...] = ()) -> str:
    """A new key's secret."""
    return create_key(store, owner or f"{role}@example.org", role, "tests", NOW, scopes=scopes, routes=routes).secret


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def application(store: Store, home: Path | None = None, notes: Notes | None = None) -> FastAPI:
    return create_app(store, notes or Notes(), clock=lambda: NOW + 60, home=home)


@contextmanager
def client(store: Store, secret: str | None = None, home: Path | None = None) -> Iterator[TestClient]:
    """A client of a started application; a failure of the service is an answer, as it is to a real caller."""
    headers: Mapping[str, str] = {} if secret is None else bearer(secret)
    with TestClient(application(store, home), headers=headers, raise_server_exceptions=False) as made:
        yield made
