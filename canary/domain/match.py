"""Which requests of a route the flag may take to the candidate, so that traffic that nothing was proven about is left out.

It knows what a gateway and the mirror both see of a request; whatever is unknown about one does not match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from canary.domain.errors import PolicyError
from canary.domain.traffic import Stratum

STREAMS = ("any", "only", "never")


@dataclass(frozen=True, slots=True)
class Match:
    """The requests that a route's flag takes; empty lists take all.

    Args:
        endpoints: of `chat/completions` and `completions`.
        strata: `greedy` (temperature 0) and `sampled`.
        stream: `any`, `only` streamed requests, or `never` those.
        max_temperature: sampled requests above it are left out; without it none is.
    """

    endpoints: tuple[str, ...] = ()
    strata: tuple[str, ...] = ()
    stream: str = "any"
    max_temperature: float | None = None

    @property
    def everything(self) -> bool:
        """Whether no request is left out."""
        return self == EVERYTHING

    def takes(self, endpoint: str | None, temperature: float | None, stream: bool | None) -> bool:
        """Whether a request is taken; None is what is not known of it, and then a rule about it leaves the request out.

        Args:
            endpoint: `chat/completions` or `completions`.
            temperature: as the request asks, 0 is greedy.
            stream: whether the client asked for a stream.
        """
        if self.endpoints and endpoint not in self.endpoints:
            return False
        if self.stream != "any" and stream is not (self.stream == "only"):
            return False
        if not self.strata and self.max_temperature is None:
            return True
        if temperature is None:
            return False
        stratum = Stratum.GREEDY if temperature == 0 else Stratum.SAMPLED
        if self.strata and stratum not in self.strata:
            return False
        return self.max_temperature is None or temperature <= self.max_temperature

    def to_json(self) -> dict[str, object]:
        """Plain JSON values, only what differs from taking everything; a snapshot carries this."""
        found: dict[str, object] = {"endpoints": list(self.endpoints), "strata": list(self.strata)}
        found |= {"stream": self.stream, "max_temperature": self.max_temperature}
        return {k: v for k, v in found.items() if v not in ([], "any", None)}


EVERYTHING = Match()


def takes(rules: Mapping[str, object], request: Mapping[str, object] | None) -> bool:
    """`Match.takes` for rules as a snapshot carries them and a request as a gateway describes it; any doubt leaves it out.

    Args:
        rules: of `Match.to_json`; empty takes everything.
        request: `endpoint`, `temperature` and `stream`, as far as known.
    """
    if not rules:
        return True
    known = request or {}
    endpoint, temperature, stream = known.get("endpoint"), known.get("temperature"), known.get("stream")
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    try:
        of = Match(**{k: tuple(v) if isinstance(v, list) else v for k, v in rules.items()})  # type: ignore[arg-type]
        return of.takes(
            endpoint if isinstance(endpoint, str) else None,
            float(temperature) if number else None,  # type: ignore[arg-type]
            stream if isinstance(stream, bool) else None,
        )
    except TypeError:
        return False


def check_match(match: Match) -> None:
    """Refuse rules that contradict each other.

    Raises:
        PolicyError: names the field.
    """
    if match.max_temperature is not None and match.strata == (Stratum.GREEDY.value,):
        raise PolicyError(
            "max_temperature is about sampled requests, and strata takes greedy ones only",
            where="match.max_temperature",
            remedy="Remove one of them.",
        )
