"""Sends signed notices to the webhooks of the settings. It follows no redirect and never logs a body, an address or a secret."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from canary.config import Webhook
from canary.domain.notices import SIGNATURE, sign

SECONDS = 5.0


class _Unfollowed(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the message to an address that nobody chose."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhooks:
    """`flow.notify.Send` over HTTP.

    Args:
        targets: by name.
        clock: seconds since the epoch; what the signature says.
    """

    def __init__(self, targets: Mapping[str, Webhook], clock: Callable[[], float] = time.time, seconds: float = SECONDS) -> None:
        self._targets, self._clock, self._seconds = dict(targets), clock, seconds
        # Without a proxy: an environment variable must not see the messages.
        self._opener = urllib.request.build_opener(_Unfollowed, urllib.request.ProxyHandler({}))

    def __call__(self, target: str, body: bytes) -> str:
        """Send one message; "" where the receiver answered 2xx, else why not."""
        webhook = self._targets.get(target)
        if webhook is None:
            return f"CANARY_WEBHOOKS names no webhook {target!r}"
        return self.post(webhook.url, webhook.secret.get_secret_value(), body)

    def post(self, url: str, secret: str, body: bytes) -> str:
        """As a call, to an address that a person gave."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "canary-webhook",
            SIGNATURE: sign(secret, body, int(self._clock())),
        }
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._seconds) as answer:
                return "" if 200 <= answer.status < 300 else f"status {answer.status}"
        except urllib.error.HTTPError as error:
            with error:
                return f"status {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return type(error).__name__
