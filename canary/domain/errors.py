"""One tree of errors, each with a stable code, an exit code and an HTTP status.

CanaryError
|-- UsageError            2   the call or its input is wrong
|   |-- PolicyError       2   a policy file is wrong
|   |-- RequestError      2   a mirrored request is wrong
|   |-- ModelError        2   a model, drafter or tokenizer cannot be used
|   |-- UnauthorizedError 2   the request shows no key that is valid
|   |-- ForbiddenError    2   the key does not allow this
|   |-- PreconditionError 2   what the request expects is not so, or it does not say what it expects
|   +-- ReusedKeyError    2   an Idempotency-Key was sent before, with another request
|-- NoDataError           4   there is nothing to decide on
|-- UnreachableError      5   something that Canary needs does not answer
|-- ConflictError         5   somebody else changed the row first
|   |-- ApprovalNeededError 5 a second person must agree first
|   +-- SelfApprovalError 5   nobody agrees to what is their own
|-- IdentityError         1   the engine broke an accounting identity
|-- EngineMemoryError     5   the engine has no memory for a request
+-- KilledError           6   the route's kill switch is on
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NO_DATA = 4
    UNREACHABLE = 5
    KILLED = 6


class CanaryError(Exception):
    """Something went wrong.

    Args:
        detail: one sentence that names the field, path or value.
        remedy: one sentence that says what to do.
        where: JSON pointer, `file:line`, or path that the detail is about.
    """

    code = "error"
    exit_code = ExitCode.FAIL
    status = 500

    def __init__(self, detail: str, *, remedy: str = "", where: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy
        self.where = where

    def __str__(self) -> str:
        head = f"{self.where}: {self.detail}" if self.where else self.detail
        return f"{head.rstrip('.')}. {self.remedy}" if self.remedy else head

    def problem(self) -> dict[str, object]:
        """The error as an RFC 9457 problem+json object."""
        body: dict[str, object] = {
            "type": f"urn:canary:error:{self.code}",
            "title": (self.__doc__ or "").strip().splitlines()[0],
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.remedy:
            body["remedy"] = self.remedy
        if self.where:
            body["where"] = self.where
        return body


class UsageError(CanaryError):
    """The call or its input is wrong."""

    code, exit_code, status = "usage", ExitCode.USAGE, 400


class PolicyError(UsageError):
    """A policy is wrong."""

    code, status = "policy", 422


class RequestError(UsageError):
    """A mirrored request is wrong."""

    code = "invalid_request"


class UnsupportedRequestError(RequestError):
    """A mirrored request is legal but asks for something that the engine cannot replay."""

    code, status = "unsupported_request", 422


class TooLargeError(RequestError):
    """A request is over the size limit."""

    code, status = "too_large", 413


class NotFoundError(UsageError):
    """There is no such route, flag, policy or rollout."""

    code, status = "not_found", 404


class ModelError(UsageError):
    """A model, drafter or tokenizer cannot be used."""

    code, status = "model", 422


class UnsupportedTypeError(RequestError):
    """The request's body is of a kind that the page does not read."""

    code, status = "unsupported_type", 415


class UnauthorizedError(UsageError):
    """The request shows no key that is valid."""

    code, status = "unauthorized", 401


class ForbiddenError(UsageError):
    """The key does not allow this."""

    code, status = "forbidden", 403


class PreconditionError(UsageError):
    """What the request expects is not so any more."""

    code, status = "precondition_failed", 412


class PreconditionRequiredError(PreconditionError):
    """The request must say what it expects to change."""

    code, status = "precondition_required", 428


class ReusedKeyError(UsageError):
    """An Idempotency-Key was sent before, with another request."""

    code, status = "reused_key", 422


class NoDataError(CanaryError):
    """There is nothing to decide on."""

    code, exit_code, status = "no_data", ExitCode.NO_DATA, 409


class UnreachableError(CanaryError):
    """Something that Canary needs does not answer."""

    code, exit_code, status = "unreachable", ExitCode.UNREACHABLE, 503


class ConflictError(CanaryError):
    """Somebody else changed the row first."""

    code, exit_code, status = "conflict", ExitCode.UNREACHABLE, 409


class ApprovalNeededError(ConflictError):
    """A second person must agree first."""

    code = "approval_needed"


class SelfApprovalError(ConflictError):
    """Nobody agrees to what is their own."""

    code, status = "self_approval", 403


class IdentityError(CanaryError):
    """The engine broke an accounting identity."""

    code, exit_code, status = "identity", ExitCode.FAIL, 500


class EngineMemoryError(CanaryError):
    """The engine has no memory for a request."""

    code, exit_code, status = "engine_memory", ExitCode.UNREACHABLE, 503


class KilledError(CanaryError):
    """The route's kill switch is on."""

    code, exit_code, status = "killed", ExitCode.KILLED, 409
