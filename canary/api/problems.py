"""Every error as problem+json (RFC 9457); the text of an error that is not ours never leaves the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from canary.domain.errors import CanaryError, NotFoundError, RequestError
from canary.flow.ports import Observer
from canary.flow.tools.body_fields import pointer

MEDIA_TYPE = "application/problem+json"


def problem(error: CanaryError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """One of our errors as an answer; 503 says when to come back."""
    extra = dict(headers or {})
    if error.status == 503:
        extra.setdefault("Retry-After", "1")
    if error.status == 401:
        extra.setdefault("WWW-Authenticate", 'Bearer realm="canary"')
    return JSONResponse(error.problem(), status_code=error.status, media_type=MEDIA_TYPE, headers=extra)


def wrong_method(method: str, known: Iterable[str]) -> JSONResponse:
    """405, with the methods that there are."""
    title = "Method Not Allowed"
    detail = f"{method[:20]} is not one of this page's methods"
    body = {"type": "about:blank", "title": title, "status": 405, "code": "http", "detail": detail}
    return JSONResponse(body, status_code=405, media_type=MEDIA_TYPE, headers={"Allow": ", ".join(sorted(known))})


def install(app: FastAPI, observer: Observer) -> None:
    """Make the application answer every error as problem+json."""

    @app.exception_handler(CanaryError)
    async def ours(request: Request, error: CanaryError) -> JSONResponse:
        return problem(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = "".join(f"/{pointer(str(part))}" for part in first["loc"][1:])
        return problem(RequestError(str(first["msg"]), where=where, remedy="See /api/v1/openapi.json."))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            return problem(
                NotFoundError("there is no such page", where=request.url.path[:200], remedy="See /api/v1/openapi.json.")
            )
        body = {
            "type": "about:blank",
            "title": error.detail,
            "status": error.status_code,
            "code": "http",
            "detail": error.detail,
        }
        return JSONResponse(body, status_code=error.status_code, media_type=MEDIA_TYPE, headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> JSONResponse:
        observer.note("api_failed", path=request.url.path, error=type(error).__name__)
        return problem(CanaryError("the request could not be answered", remedy="See the service's log."))
