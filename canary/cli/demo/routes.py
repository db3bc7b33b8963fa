"""The demo's routes: which prompts each one mirrors, and how it differs from the others."""

from __future__ import annotations

import json
from dataclasses import dataclass

from canary.cli.demo import prompts

DRILL_PROMPTS = 60


@dataclass(frozen=True, slots=True)
class DemoRoute:
    """One route of the demo.

    Args:
        name: of the route and of its policy file.
        prompts: name of the prompt file.
        limit: how many of its prompts are sent; None is all.
        temperature: replaces the prompts' own, None keeps it.
    """

    name: str
    prompts: str
    limit: int | None = None
    temperature: float | None = None

    def bodies(self) -> list[tuple[str, bytes]]:
        """(request id, OpenAI chat body) of every request that the route sends."""
        found = []
        for item in prompts.load(self.prompts)[: self.limit]:
            body = {k: v for k, v in item.items() if k != "id"}
            if self.temperature is not None:
                body["temperature"] = self.temperature
            found.append((str(item["id"]), json.dumps({"model": "demo", **body}).encode()))
        return found


MATH = DemoRoute("math", "math")
RAG = DemoRoute("rag", "rag")
FAQ = DemoRoute("faq", "faq")
CREATIVE = DemoRoute("creative", "creative")
DRILL = DemoRoute("math-drill", "math", limit=DRILL_PROMPTS, temperature=1.0)

SHORT_TOUR = (MATH, CREATIVE, DRILL)
FULL_TOUR = (MATH, RAG, FAQ, CREATIVE, DRILL)
