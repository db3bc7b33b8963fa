"""An OpenFeature provider that answers from memory: no call, no lock and no wait in an evaluation, sync or async.

It says of a flag exactly what the API's remote evaluation says (`domain.evaluation`). The one module of the client that imports
the OpenFeature SDK.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from openfeature.evaluation_context import EvaluationContext
from openfeature.event import ProviderEventDetails
from openfeature.exception import (
    FlagNotFoundError,
    GeneralError,
    ProviderNotReadyError,
    TargetingKeyMissingError,
    TypeMismatchError,
)
from openfeature.flag_evaluation import FlagResolutionDetails, FlagValueType, Reason
from openfeature.provider import AbstractProvider, Metadata

from canary.client.flags import FlagClient
from canary.client.held import Event, EventKind
from canary.domain.evaluation import BOOLEAN, CONFIG, FLAG_NOT_FOUND, TARGETING_KEY_MISSING
from canary.domain.kills import ALL

READY_SECONDS = 5.0
AFTER_READY_SECONDS = 0.05


class CanaryProvider(AbstractProvider):
    """Flags of a `FlagClient` for the OpenFeature SDK.

    Boolean `specdec.ROUTE`: whether the unit gets the candidate; object `specdec-config.ROUTE`: what its engine is to be set to.
    The context's targeting key is the unit; its attributes `endpoint`, `temperature` and `stream` describe the request. The
    provider is READY with a fresh snapshot, STALE with an old one, ERROR without any, and evaluates in all three.

    Args:
        client: closed with the provider.
        ready_seconds: how long `initialize` waits for a fresh snapshot.
    """

    def __init__(self, client: FlagClient, *, ready_seconds: float = READY_SECONDS) -> None:
        super().__init__()
        self._client = client
        self._ready_seconds = ready_seconds
        self._fresh = threading.Event()
        client.listen(self._heard)

    def get_metadata(self) -> Metadata:
        """The provider's name."""
        return Metadata(name="canary")

    def initialize(self, evaluation_context: EvaluationContext) -> None:
        """Wait, within bounds, for a fresh snapshot.

        Raises:
            ProviderNotReadyError: there is none at all; evaluations are the baseline until one comes.
        """
        if self._client.stale:
            self._fresh.wait(self._ready_seconds)
        if self._client.snapshot is None:
            raise ProviderNotReadyError("no flags yet; every evaluation is the baseline")
        if self._client.stale:
            # The SDK calls the provider ready when this returns, so that the truth can only be told after it.
            timer = threading.Timer(AFTER_READY_SECONDS, self._say_stale)
            timer.daemon = True
            timer.start()

    def shutdown(self) -> None:
        """Close the client."""
        self._client.close()

    def resolve_boolean_details(
        self, flag_key: str, default_value: bool, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[bool]:
        """Whether the unit gets the candidate."""
        return self._resolve(flag_key, bool, evaluation_context)

    def resolve_string_details(
        self, flag_key: str, default_value: str, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[str]:
        """Refused: no flag of ours is a string."""
        return self._resolve(flag_key, str, evaluation_context)

    def resolve_integer_details(
        self, flag_key: str, default_value: int, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[int]:
        """Refused: no flag of ours is a number."""
        return self._resolve(flag_key, int, evaluation_context)

    def resolve_float_details(
        self, flag_key: str, default_value: float, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[float]:
        """Refused: no flag of ours is a number."""
        return self._resolve(flag_key, float, evaluation_context)

    def resolve_object_details(
        self,
        flag_key: str,
        default_value: Sequence[FlagValueType] | Mapping[str, FlagValueType],
        evaluation_context: EvaluationContext | None = None,
    ) -> FlagResolutionDetails[Sequence[FlagValueType] | Mapping[str, FlagValueType]]:
        """What the unit's engine is to be set to."""
        return self._resolve(flag_key, Mapping, evaluation_context)

    def _resolve(self, key: str, kind: Any, context: EvaluationContext | None) -> FlagResolutionDetails[Any]:
        unit = context.targeting_key if context is not None else None
        found = self._client.evaluate(key, unit or None, context.attributes if context is not None else None)
        if found.error == FLAG_NOT_FOUND:
            raise FlagNotFoundError(found.details)
        if found.error == TARGETING_KEY_MISSING:
            raise TargetingKeyMissingError(found.details)
        if found.error:
            raise GeneralError(found.details)
        if not isinstance(found.value, kind) or (isinstance(found.value, bool) and kind is not bool):
            raise TypeMismatchError(f"{key} is not of type {kind.__name__}")
        return FlagResolutionDetails(
            value=found.value, reason=Reason[found.reason], variant=found.variant, flag_metadata=dict(found.metadata)
        )

    def _heard(self, event: Event) -> None:
        if event.kind is EventKind.READY:
            self._fresh.set()
            self.emit_provider_ready(ProviderEventDetails(message="the flags are fresh"))
        elif event.kind is EventKind.STALE:
            self._fresh.clear()
            self._say_stale()
        else:
            self.emit_provider_configuration_changed(ProviderEventDetails(flags_changed=self._keys(event.routes)))

    def _say_stale(self) -> None:
        if self._client.stale:
            self.emit_provider_stale(ProviderEventDetails(message="the control plane has not answered for too long"))

    def _keys(self, routes: tuple[str, ...]) -> list[str]:
        snapshot = self._client.snapshot
        known = sorted(snapshot.flags) if snapshot is not None else []
        named = known if ALL in routes else routes
        return [prefix + route for route in named for prefix in (BOOLEAN, CONFIG)]
