"""The keys of `subject.drafter`; which of them belong together is the drafter's own check."""

from __future__ import annotations

from canary.domain.drafter_policy import DRAFTERS, FALLBACKS, VERIFICATIONS, Drafter
from canary.flow.tools.yaml_scalars import Flag, Number, OneOf, Text
from canary.flow.tools.yaml_sections import Field, Section

DRAFTER = Section(
    Drafter,
    {
        "name": Field(OneOf(DRAFTERS)),
        "num_speculative_tokens": Field(Number("4", least=1, most=32, integer=True)),
        "model": Field(Text("models/draft")),
        "max_ngram": Field(Number("3", least=1, most=16, integer=True)),
        "exit_layer": Field(Number("8", least=1, most=1024, integer=True)),
        "heads": Field(Text("models/heads")),
        "fallback": Field(OneOf(FALLBACKS)),
        "verification": Field(OneOf(VERIFICATIONS)),
        "adaptive": Field(Flag()),
        "device": Field(Text("cuda:0", r"cpu|cuda:\d{1,3}", "`cpu` or `cuda:N`")),
    },
)
