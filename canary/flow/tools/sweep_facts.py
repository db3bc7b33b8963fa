"""What a sweep works from: recorded answers, measured step times, and how each drafter fares along the recorded text.

Plain values and one small Protocol that an engine meets by shape; nothing here chooses anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from canary.domain.policy import Drafter
from canary.domain.traffic import Prompt, SamplingParams
from canary.stats.cost import Curve
from canary.stats.rounds import Track


@dataclass(frozen=True, slots=True)
class Recorded:
    """One baseline answer, run alone and untraced.

    Args:
        prompt_ids, token_ids: of the prompt and of the answer.
        prefill_seconds: to the first token; `decode_seconds`: from there to the last.
    """

    request_id: str
    params: SamplingParams
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0


@dataclass(frozen=True, slots=True)
class Drafted:
    """A drafter along all recorded answers.

    Args:
        tracks: one per answer.
        cost: seconds of one draft by (0, rows, k); None where drafting costs nothing worth counting.
        prefill: seconds that it adds to each answer's prefill, empty for none.
        replayed: whether its drafts were replayed as they are; else they were scored along the text.
    """

    tracks: tuple[Track, ...]
    cost: Curve | None
    prefill: tuple[float, ...]
    replayed: bool


@dataclass(frozen=True, slots=True)
class Baseline:
    """A plain step against the memory's limit.

    Args:
        step_seconds: of width 1 at batch 1; `weight_bytes` are read for it, at `bandwidth` bytes a second at most (measured).
    """

    step_seconds: float
    weight_bytes: float
    bandwidth: float


class SweepEngine(Protocol):
    """An engine that can be measured for a sweep.

    Attributes:
        fingerprint: hash of what the recorded answers depend on.
        described: forward, dtype and the like, for people.
    """

    fingerprint: str
    described: Mapping[str, str]

    def record(self, prompt: Prompt) -> Recorded | None:
        """Run the baseline alone on one prompt; None where the prompt cannot run."""

    def curve(self, batches: Sequence[int], context: int) -> Curve:
        """Measure target steps now."""

    def baseline(self, step_seconds: float) -> Baseline:
        """Measure what the memory gives."""

    def along(self, drafter: Drafter, answers: Sequence[Recorded], batches: Sequence[int], most: int) -> Drafted:
        """Let a drafter draft along the recorded text, up to `most` tokens a round.

        Raises:
            ModelError: its model cannot be used.
        """


class RunFile:
    """A recorded run as a JSON-lines file: each answer is there as soon as it is finished, and a second sweep begins with them.

    Args:
        path: named after what the answers depend on, see `named`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def named(cls, folder: Path, route: str, fingerprint: str, max_tokens: int) -> RunFile:
        """The file of one route on one engine."""
        digest = hashlib.blake2b(f"{fingerprint}|{max_tokens}".encode(), digest_size=6).hexdigest()
        return cls(folder / f"{route.replace(':', '_')}-{digest}.jsonl")

    def load(self) -> dict[str, Recorded]:
        """Finished answers by request and body; a last line that a crash cut short is left out."""
        found: dict[str, Recorded] = {}
        if not self.path.is_file():
            return found
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                item = json.loads(line)
            except ValueError:
                continue
            found[item["key"]] = _recorded(item["answer"])
        return found

    def append(self, key: str, answer: Recorded) -> None:
        """Keep one answer."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "answer": asdict(answer)}) + "\n")


def key_of(prompt: Prompt) -> str:
    """Of a prompt's id and bytes: another body under the same id is another request."""
    return hashlib.blake2b(prompt.request_id.encode() + b"\0" + prompt.body, digest_size=16).hexdigest()


def _recorded(fields: Mapping[str, Any]) -> Recorded:
    return Recorded(
        request_id=fields["request_id"],
        params=SamplingParams.from_json(fields["params"]),
        prompt_ids=tuple(fields["prompt_ids"]),
        token_ids=tuple(fields["token_ids"]),
        prefill_seconds=fields["prefill_seconds"],
        decode_seconds=fields["decode_seconds"],
    )
