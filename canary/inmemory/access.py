"""API keys, and answers kept by Idempotency-Key, in dictionaries."""

from __future__ import annotations

from dataclasses import replace

from canary.domain.access import Key
from canary.flow.ports import KeptAnswer
from canary.inmemory.state import Repository


class Keys(Repository):
    def get(self, key_id: str, *, lock: bool = False) -> Key | None:
        return self.state.keys.get(key_id)

    def list(self) -> list[Key]:
        return sorted(self.state.keys.values(), key=lambda key: (-key.created_at, key.key_id))

    def put(self, key: Key) -> None:
        self.state.keys[key.key_id] = key


class Answers(Repository):
    def begin(self, caller: str, key: str, fingerprint: str, now: float, *, stalled_before: float) -> KeptAnswer | None:
        found = self.state.answers.get((caller, key))
        if found is not None:
            kept, started_at = found
            if kept.status is not None or started_at >= stalled_before or kept.fingerprint != fingerprint:
                return kept
        self.state.answers[(caller, key)] = (KeptAnswer(fingerprint, None, "", b""), now)
        return None

    def finish(self, caller: str, key: str, status: int, headers: str, body: bytes) -> None:
        if (found := self.state.answers.get((caller, key))) is not None:
            self.state.answers[(caller, key)] = (replace(found[0], status=status, headers=headers, body=body), found[1])

    def forget(self, caller: str, key: str) -> None:
        self.state.answers.pop((caller, key), None)

    def expire(self, before: float) -> int:
        old = [name for name, (_, started_at) in self.state.answers.items() if started_at < before]
        for name in old:
            del self.state.answers[name]
        return len(old)
