"""Turns what the database says into Canary's errors: what is wrong and what to do, never the values of a row.

A driver's message may quote prompts, so conflicts drop it; nothing here retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from canary.domain.errors import CanaryError, ConflictError, UnreachableError, UsageError

WHERE = "CANARY_DATABASE_URL"
FULL = (errors.DiskFull, errors.InsufficientResources, errors.OutOfMemory)
SCHEMA = (errors.UndefinedTable, errors.UndefinedColumn)
TAKEN = (errors.IntegrityError, errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)


def read_url(address: str) -> URL:
    """The address with the one driver that Canary uses.

    Raises:
        UsageError: it is no Postgres address.
    """
    try:
        url = make_url(address)
    except ArgumentError:
        url = None
    if url is None or url.get_backend_name() not in ("postgresql", "postgres"):
        raise UsageError(
            "not the address of a Postgres database", where=WHERE, remedy="Write postgresql://user:password@host/name."
        )
    return url.set(drivername="postgresql+psycopg")


def shown(url: URL) -> str:
    """The address without its password, wherever that was written."""
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Raise Canary's errors for the driver's inside the block."""
    try:
        yield
    except PoolTimeoutError as error:
        raise UnreachableError(
            "every connection to the database is in use", where=shown(url), remedy="Run fewer workers in this process."
        ) from error
    except DBAPIError as error:
        found = _translate(error.orig, url)
        if found is None:
            raise
        raise found from (None if isinstance(found, ConflictError) else error)
    except psycopg.Error as error:
        found = _translate(error, url)
        if found is None:
            raise
        raise found from (None if isinstance(found, ConflictError) else error)


def _translate(error: BaseException | None, url: URL) -> CanaryError | None:
    where = shown(url)
    if isinstance(error, FULL):
        return UnreachableError(
            "the database has no room left; nothing of this transaction was kept",
            where=where,
            remedy="Free disk space or memory on its machine, or shorten retention, then try again.",
        )
    if isinstance(error, SCHEMA):
        return UnreachableError(
            "the database has no Canary tables, or those of another version",
            where=where,
            remedy="Start `canary serve`, which migrates it, or point CANARY_DATABASE_URL elsewhere.",
        )
    if isinstance(error, TAKEN):
        name = error.diag.constraint_name or type(error).__name__
        return ConflictError(f"somebody else wrote the same rows first ({name})", remedy="Read again and retry.")
    if isinstance(error, errors.RaiseException | errors.DataError | errors.ProgrammingError):
        return None
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        said = str(error).strip().splitlines()
        return UnreachableError(
            f"the database does not answer: {said[0] if said else type(error).__name__}",
            where=where,
            remedy="Check that it runs and that CANARY_DATABASE_URL is right; without that variable Canary runs its own.",
        )
    return None
