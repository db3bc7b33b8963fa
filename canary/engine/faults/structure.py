"""Faults between right tokens and what the client reads: the text has holes, and only its structure tells."""

from __future__ import annotations

from dataclasses import replace

from canary.engine.hooks import Hooks
from canary.engine.requests import Running, Words


def chunk_read_from_last_token(hooks: Hooks) -> Hooks:
    """Read each step's last token and miss the accepted ones before it."""

    def text(running: Running, words: Words) -> str:
        kept, at = [], 0
        for accepted in running.accepted:
            chunk = running.token_ids[at : at + accepted + 1]
            kept.extend(chunk[-1:])
            at += len(chunk)
        return hooks.text(replace(running, token_ids=kept), words)

    return replace(hooks, text=text)
