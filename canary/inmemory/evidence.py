"""Evidence and calibration records in dictionaries, as JSON text, so that nobody can change what is stored by keeping it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from canary.domain.errors import ConflictError
from canary.inmemory.state import Repository


class Evidence(Repository):
    def get(self, route: str, epoch: str, attempt: int) -> dict[str, object] | None:
        return loads(self.state.evidence.get((route, epoch, attempt)))

    def put(self, route: str, epoch: str, attempt: int, state: Mapping[str, object]) -> None:
        self.state.evidence[(route, epoch, attempt)] = json.dumps(state)

    def attempts(self, route: str, epoch: str) -> list[int]:
        return sorted(attempt for r, e, attempt in self.state.evidence if (r, e) == (route, epoch))

    def get_calibration(self, route: str, epoch: str, attempt: int) -> dict[str, object] | None:
        return loads(self.state.calibrations.get((route, epoch, attempt)))

    def put_calibration(self, route: str, epoch: str, attempt: int, record: Mapping[str, object]) -> None:
        block = json.dumps(record, sort_keys=True)
        if self.state.calibrations.setdefault((route, epoch, attempt), block) != block:
            raise ConflictError(
                f"attempt {attempt} is already calibrated, with other values",
                where=f"calibrations/{route}",
                remedy="Read the frozen record and use that.",
            )


def loads(block: str | None) -> dict[str, object] | None:
    return None if block is None else cast("dict[str, object]", json.loads(block))
