"""What a route's mirror has counted: requests seen and requests kept, by what is known of a request without a tokenizer.

It holds counts and no request; an id never enters it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from canary.domain.traffic import Prompt

ENDPOINTS = ("chat/completions", "completions")
LENGTH_EDGES = (0, 2**8, 2**10, 2**12, 2**14, 2**16)  # fewest characters of each bucket; the last one has no end


def length_bucket(characters: int) -> int:
    """Fewest characters of the bucket that a prompt falls into, one of `LENGTH_EDGES`."""
    if characters < 0:
        raise ValueError(f"{characters} characters are fewer than none")
    return LENGTH_EDGES[bisect_right(LENGTH_EDGES, characters) - 1]


def length_name(bucket: int) -> str:
    """The bucket in words, `256-1023 characters`.

    Raises:
        ValueError: it is none of `LENGTH_EDGES`.
    """
    at = LENGTH_EDGES.index(bucket) + 1
    return f"{bucket}-{LENGTH_EDGES[at] - 1} characters" if at < len(LENGTH_EDGES) else f"{bucket} characters and more"


Kind = tuple[str, float, str, bool, int]  # route, rate, endpoint, stream, length


def kind(prompt: Prompt, rate: float) -> Kind:
    """What a request counts under, at its route's mirror rate."""
    return prompt.route, rate, prompt.endpoint, prompt.stream, length_bucket(prompt.num_characters)


@dataclass(frozen=True, slots=True, order=True)
class MirrorCount:
    """Requests of one kind under one mirror rate.

    Args:
        rate: share that the policy asked to keep; another rate is another window, since its plan is another.
        endpoint: one of `ENDPOINTS`.
        stream: whether the client asked for a stream.
        length: its `length_bucket`.
        seen: requests, each id once as far as that is known (`flow.mirrored`).
        kept: of those, the ones that were stored.
    """

    route: str
    rate: float
    endpoint: str
    stream: bool
    length: int
    seen: int
    kept: int

    @classmethod
    def of(cls, prompt: Prompt, rate: float, *, kept: bool) -> MirrorCount:
        """One request."""
        return cls(*kind(prompt, rate), 1, int(kept))


def added_up(counts: Iterable[MirrorCount]) -> list[MirrorCount]:
    """One count per kind, in a fixed order."""
    sums: dict[Kind, tuple[int, int]] = {}
    for c in counts:
        of = (c.route, c.rate, c.endpoint, c.stream, c.length)
        seen, kept = sums.get(of, (0, 0))
        sums[of] = (seen + c.seen, kept + c.kept)
    return [MirrorCount(*of, *sums[of]) for of in sorted(sums)]
