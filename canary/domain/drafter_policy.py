"""What a policy says about the drafter, and which of its fields belong together; it knows no model and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from canary.domain.errors import PolicyError

COMPOSITE = "composite"

# drafter -> the field that it cannot do without, and how to add it
NEEDS: Mapping[str, tuple[str, str]] = {
    "draft_model": ("model", "Add `model:` with its directory."),
    "early_exit": ("exit_layer", "Add `exit_layer:` with the number of the target's layers that draft."),
    "heads": ("heads", "Add `heads:` with the directory that holds them."),
}
FALLBACKS = tuple(NEEDS)
DRAFTERS = ("ngram", *FALLBACKS, COMPOSITE)
VERIFICATIONS = ("token", "block")  # words of `pairs.Scheme`


@dataclass(frozen=True, slots=True)
class Drafter:
    """What proposes tokens.

    Args:
        name: `ngram`, `draft_model`, `early_exit`, `heads` or `composite`.
        num_speculative_tokens: k, at least 1.
        model: directory of the draft model, for `draft_model`.
        max_ngram: longest match that `ngram` looks for.
        exit_layer: how many of the target's first layers `early_exit` drafts with.
        heads: directory of Medusa-style heads, for `heads`.
        fallback: what `composite` asks where no n-gram matches: `draft_model`, `early_exit` or `heads`.
        verification: how drafts are judged, `token` (each by itself) or `block` (those of a round together); both are lossless.
        adaptive: whether each step drafts as many tokens as its own past and the measured step costs make worth while, 0 to
            `num_speculative_tokens`; otherwise always that many. A drill always drafts all, so that its fault can show.
        device: where a draft model runs, `cpu` or `cuda:N`; the target's device unless given.
    """

    name: str
    num_speculative_tokens: int
    model: str | None = None
    max_ngram: int = 3
    exit_layer: int | None = None
    heads: str | None = None
    fallback: str | None = None
    device: str | None = None
    verification: str = "token"
    adaptive: bool = True

    @property
    def model_drafter(self) -> str:
        """The drafter that needs weights: the composite's fallback, else itself."""
        return self.fallback or self.name

    def check(self) -> None:
        """Refuse fields that contradict the name, which would be read by nobody.

        Raises:
            PolicyError: names the field.
        """
        if self.verification not in VERIFICATIONS:
            raise PolicyError(
                f"verification {self.verification!r} is unknown",
                where="subject.drafter.verification",
                remedy=f"Use {_one_of(VERIFICATIONS)}.",
            )
        if self.name == COMPOSITE and self.fallback is None:
            raise PolicyError(
                "composite needs a fallback", where="subject.drafter", remedy=f"Add `fallback:` with {_one_of(FALLBACKS)}."
            )
        if self.name != COMPOSITE and self.fallback is not None:
            raise self._takes_no("fallback", f"`name: {COMPOSITE}`")
        key = "name" if self.name != COMPOSITE else "fallback"
        for owner, (field, remedy) in NEEDS.items():
            given = getattr(self, field) is not None
            if self.model_drafter == owner and not given:
                article = "an" if field[0] in "aeiou" else "a"
                what = field if field == "heads" else f"{article} {field}"
                raise PolicyError(f"{owner} needs {what}", where="subject.drafter", remedy=remedy)
            if self.model_drafter != owner and given:
                raise self._takes_no(field, f"`{key}: {owner}`")
        if self.device is not None and self.model_drafter != "draft_model":
            raise self._takes_no("device", f"`{key}: draft_model`")

    def _takes_no(self, field: str, instead: str) -> PolicyError:
        who = self.name if self.fallback is None or self.name != COMPOSITE else f"{self.name} with {self.fallback}"
        return PolicyError(f"{who} takes no {field}", where=f"subject.drafter.{field}", remedy=f"Remove it or use {instead}.")


def _one_of(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
