"""Reading what people asked and what both arms answered: never without an audit event that says who read which pair."""

from __future__ import annotations

from dataclasses import asdict

from canary.domain.errors import NotFoundError
from canary.domain.traffic import Message, Prompt
from canary.flow.ports import Store


def read_content(store: Store, route: str, pair_id: str, reader: str, now: float) -> dict[str, object]:
    """One pair's prompt and both answers.

    Args:
        reader: who reads, for the audit log; nothing is shown where that cannot be written.

    Raises:
        NotFoundError: the route has no such pair.
    """
    with store.transaction() as tx:
        pair = tx.pairs.get(pair_id)
        if pair is None or pair.route != route:
            raise NotFoundError("the route has no such pair", where="/pair_id", remedy="List its pairs.")
        prompt = tx.prompts.of_pair(pair_id)
        body = {"sentence": f"The content of pair {pair_id} was read.", "pair_id": pair_id}
        tx.audit.append(route, "content_read", reader, body, now)
        tx.commit()
    return {
        "pair_id": pair_id,
        "prompt": None if prompt is None else _prompt(prompt),
        "baseline": pair.baseline.text,
        "candidate": pair.candidate.text,
    }


def _prompt(prompt: Prompt) -> dict[str, object]:
    messages = [_message(message) for message in prompt.messages]
    return {"endpoint": prompt.endpoint, "text": prompt.text, "messages": messages}


def _message(message: Message) -> dict[str, object]:
    """Role and content, and of tools what the message has of them."""
    fields = asdict(message)
    return {name: value for name, value in fields.items() if name in ("role", "content") or value}
