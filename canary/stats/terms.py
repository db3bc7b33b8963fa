"""What the certificates of a route come to in a user's terms: tokens in a hundred, and the probability that an answer differs.

Margins are per token and in the tested directions; a margin of .01 is never "1 % of answers" (statistics 3.6 and pitfall 13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from canary.domain.evidence import GateEvidence, GateRole, Verdict
from canary.domain.traffic import Stratum

ANSWER_TOKENS = 200
LOSSLESSNESS = "losslessness"
BEHIND: Mapping[Stratum, tuple[str, ...]] = {
    Stratum.SAMPLED: ("bank_certificate", "pit_certificate", "row_gate"),
    Stratum.GREEDY: ("gap_certificate",),
}


def differs_evenly(per_token: float, num_tokens: int) -> float:
    """Probability that an answer differs if every one of its tokens is shifted by `per_token`: 1 - (1 - m)^n.

    Two rows at total variation m can be drawn so that they differ with probability m (maximal coupling), token after token.
    """
    return 1.0 - (1.0 - min(max(per_token, 0.0), 1.0)) ** num_tokens


def differs_at_most(per_token: float, num_tokens: int) -> float:
    """The same if only the mean over the tokens is known: at most n m, the union bound, since few tokens may carry it all."""
    return min(1.0, max(per_token, 0.0) * num_tokens)


@dataclass(frozen=True, slots=True)
class Terms:
    """The sum of what is certified for one stratum.

    Args:
        certified: whether every gate behind it passes; otherwise this is what they will exclude once they do.
        sampler: total variation per token that the bank's and PIT's certificates leave to the draw; greedy: the rate of tokens
            that the reference would not have chosen.
        rows: mean row distance that the row gate leaves on top; greedy: 0, its gaps are the reference's own.
        exact: the rows' bound is absolute (fp32) and not an excess over the baseline's.
    """

    stratum: Stratum
    certified: bool
    sampler: float
    rows: float
    exact: bool = False
    num_tokens: int = ANSWER_TOKENS

    @property
    def per_token(self) -> float:
        """Certified total per token (statistics 3.6: mean distance of the rows + certified distance of the sampler)."""
        return min(1.0, self.sampler + self.rows)

    def sentence(self) -> str:
        """The sum in words."""
        start = "At most" if self.certified else "Not yet certified; once it is, at most"
        if self.stratum is Stratum.SAMPLED:
            rows = f"{'row distance' if self.exact else 'row excess'} {self.rows:.3g}"
            of, what = "tokens", f"differ in distribution (sampler {self.sampler:.3g} plus {rows}, in the directions tested)"
        else:
            of, what = "greedy tokens", "are not the reference's choice"
        even, most = (f(self.per_token, self.num_tokens) for f in (differs_evenly, differs_at_most))
        return (
            f"{start} {100 * self.per_token:.3g} {of} in 100 {what}. A {self.num_tokens}-token answer then differs with "
            f"probability at most {_percent(even)} if every token is shifted alike, and {_percent(most)} however the shift is "
            "spread."
        )

    def to_json(self) -> dict[str, object]:
        """Plain JSON values, with the sentence."""
        return {
            **asdict(self),
            "stratum": str(self.stratum),
            "per_token": self.per_token,
            "differs_evenly": differs_evenly(self.per_token, self.num_tokens),
            "differs_at_most": differs_at_most(self.per_token, self.num_tokens),
            "sentence": self.sentence(),
        }


def of_gates(gates: Sequence[GateEvidence], num_tokens: int = ANSWER_TOKENS) -> list[Terms]:
    """The sums of a route's strata, from its gates; a stratum that is not tested has none.

    Args:
        gates: of one assessment; those behind a stratum that are missing count as not certified.
    """
    named = {g.gate: g for g in gates}
    found = []
    if (bank := named.get("bank_certificate")) is not None:
        row = named.get("row_gate")
        certified = _all_pass(named, Stratum.SAMPLED)
        rows = 0.0 if row is None else _bound(row, certified)
        exact = row is not None and row.details.get("absolute") is True
        found.append(Terms(Stratum.SAMPLED, certified, _sampler(bank), rows, exact, num_tokens))
    if (gap := named.get("gap_certificate")) is not None:
        certified = _all_pass(named, Stratum.GREEDY)
        found.append(Terms(Stratum.GREEDY, certified, _bound(gap, certified), 0.0, num_tokens=num_tokens))
    return found


def _all_pass(named: Mapping[str, GateEvidence], stratum: Stratum) -> bool:
    return all(name in named and named[name].verdict is Verdict.PASS for name in BEHIND[stratum])


def _sampler(bank: GateEvidence) -> float:
    """The margin, or what the certificates reach on the traffic that they counted where that is farther."""
    margin = bank.threshold or 0.0
    reach = bank.details.get("reach")
    if not isinstance(reach, Mapping):
        return margin
    return max([margin, *(float(each["contamination"]) for each in reach.values())])


def _bound(gate: GateEvidence, certified: bool) -> float:
    """The gate's own upper bound where it passes, else the margin that it is about."""
    margin = gate.threshold or 0.0
    return max(gate.high, 0.0) if certified and gate.high is not None else margin


def stated(gates: Iterable[GateEvidence]) -> tuple[GateEvidence, ...]:
    """The gates with the sums in the details of the losslessness gate and of the certificates, as `user_terms`.

    Where a difference is proven inside every certified margin the losslessness gate says so. Verdicts, reason codes and numbers
    stay as they are: the suspected fault is what a person looks for.
    """
    gates = tuple(gates)
    terms, inside = of_gates(gates), inside_margin(gates)
    return tuple(_said(g, terms, inside) for g in gates) if terms else gates


def inside_margin(gates: Sequence[GateEvidence]) -> bool:
    """Whether a difference is proven although every certificate holds: lossy by less than the margins."""
    promised = [g for g in gates if g.role is GateRole.EQUIVALENCE]
    proven = any(g.gate == LOSSLESSNESS and g.verdict is Verdict.FAIL for g in gates)
    return proven and bool(promised) and all(g.verdict is Verdict.PASS for g in promised)


def _said(gate: GateEvidence, terms: Sequence[Terms], inside: bool) -> GateEvidence:
    if gate.gate == LOSSLESSNESS:
        said = {"user_terms": [t.to_json() for t in terms], "inside_margin": inside}
        words = " The difference lies inside every certified margin." if inside else ""
        return replace(gate, sentence=gate.sentence + words, details={**gate.details, **said})
    mine = [t.to_json() for t in terms if gate.gate in BEHIND[t.stratum]]
    return replace(gate, details={**gate.details, "user_terms": mine}) if mine else gate


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
