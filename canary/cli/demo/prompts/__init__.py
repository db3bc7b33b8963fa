"""The demo's prompts: OpenAI chat bodies with their sampling parameters, written for Canary and shipped as package data.

Nothing here may reach a network or change a prompt: what a file holds is what the demo sends.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from canary.domain.errors import UsageError

NAMES = ("math", "rag", "faq", "creative")


def load(name: str) -> list[dict[str, Any]]:
    """The prompts of one demo route, in the order of the file.

    Args:
        name: one of `NAMES`.

    Returns:
        One dictionary per prompt: `id`, and the body's own fields `messages`, `temperature`, `max_tokens` and, where the
        route sets it, `top_p`. `id` is Canary's; drop it before sending a body.

    Raises:
        UsageError: there is no such set of prompts.
    """
    if name not in NAMES:
        raise UsageError(f"there are no demo prompts called {name!r}; choose one of {', '.join(NAMES)}")
    text = (files(__package__) / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line]
