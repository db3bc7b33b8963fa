"""The demo's prompts are what their README says: enough, distinct, short, well formed and arithmetically right."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from canary.cli.demo.prompts import NAMES, load
from canary.domain.errors import UsageError

COUNTS = {"math": 144, "rag": 144, "faq": 200, "creative": 60}
SAMPLING = {"math": (0, None), "rag": (0, None), "faq": (0.7, 1), "creative": (1, None)}
WORDS = {"math": (60, 120), "rag": (70, 140), "faq": (8, 40), "creative": (6, 40)}  # of all messages together
COMPANIES = re.compile(
    r"\b(?:Google|OpenAI|Anthropic|Microsoft|Amazon|Apple|Meta|Facebook|WhatsApp|Instagram|Netflix|Nvidia|NVIDIA|Intel|Samsung|Sony|"
    r"IKEA|Ikea|Tesla|Uber|PayPal|Visa|Mastercard|eBay|Walmart|DHL|FedEx|UPS|Lego|LEGO|Spotify|YouTube|TikTok|Twitter|LinkedIn|Zoom|"
    r"Slack|Adobe|Oracle|Hugging Face)\b"
)
NUMBER = r"-?\d+(?:\.\d+)?"
EQUATION = re.compile(rf"({NUMBER}(?: [-+x/] {NUMBER})+) = ({NUMBER})")


def text_of(prompt: dict[str, Any]) -> str:
    return "\n".join(m["content"] for m in prompt["messages"])


def normalised(prompt: dict[str, Any]) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text_of(prompt).lower()))


def value(expression: str) -> Fraction:
    """Left to right; the worked examples never mix sums and products."""
    first, *rest = expression.split(" ")
    total = Fraction(first)
    for operator, operand in zip(rest[::2], rest[1::2], strict=True):
        number = Fraction(operand)
        match operator:
            case "+":
                total += number
            case "-":
                total -= number
            case "x":
                total *= number
            case "/":
                total /= number
    return total


def wrong_equations(text: str) -> list[str]:
    return [m[0] for m in EQUATION.finditer(text) if value(m[1]) != Fraction(m[2])]


@pytest.mark.parametrize("name", NAMES)
def test_counts_ids_and_fields(name: str) -> None:
    prompts = load(name)
    assert [p["id"] for p in prompts] == [f"{name}-{i:03d}" for i in range(1, COUNTS[name] + 1)]
    temperature, top_p = SAMPLING[name]
    for p in prompts:
        assert set(p) == {"id", "messages", "temperature", "max_tokens"} | ({"top_p"} if top_p is not None else set()), p["id"]
        assert (p["temperature"], p.get("top_p"), p["max_tokens"]) == (temperature, top_p, 40), p["id"]
        assert [m["role"] for m in p["messages"]] in (["user"], ["system", "user"]), p["id"]
        assert all(set(m) == {"role", "content"} and m["content"] == m["content"].strip() != "" for m in p["messages"]), p["id"]


def test_no_prompt_appears_twice() -> None:
    seen = Counter(normalised(p) for name in NAMES for p in load(name))
    assert [text for text, times in seen.items() if times > 1] == []
    assert len(seen) == sum(COUNTS.values())


@pytest.mark.parametrize("name", NAMES)
def test_lengths(name: str) -> None:
    low, high = WORDS[name]
    sizes = {p["id"]: len(text_of(p).split()) for p in load(name)}
    assert {key: n for key, n in sizes.items() if not low <= n <= high} == {}


@pytest.mark.parametrize("name", NAMES)
def test_no_real_company_is_named(name: str) -> None:
    assert [(p["id"], found) for p in load(name) if (found := COMPANIES.findall(text_of(p)))] == []


def test_every_worked_example_is_right() -> None:
    examples = set()
    for p in load("math"):
        text = text_of(p)
        equations = EQUATION.findall(text)
        assert equations, f"{p['id']} has no worked example"
        assert len(equations) == text.count("="), f"{p['id']} has an equation that this test cannot read"
        assert wrong_equations(text) == [], p["id"]
        examples.add(tuple(equations))
    assert len(examples) == 72


def test_a_wrong_example_is_noticed() -> None:
    assert wrong_equations("6 x 12 = 72, then 72 - 40 = 33 and 14 - 18 = -4") == ["72 - 40 = 33"]


def test_the_drill_sees_many_scenarios() -> None:
    """The drill takes the first 60 prompts, so their worked examples must not repeat."""
    first = [tuple(EQUATION.findall(text_of(p))) for p in load("math")[:60]]
    assert len(set(first)) == 60


def test_rag_documents_serve_two_questions_each() -> None:
    """The longest paragraph is the document, whatever the layout puts around it."""
    documents: Counter[str] = Counter()
    for p in load("rag"):
        lines = p["messages"][-1]["content"].split("\n")
        longest = max(lines, key=len)
        documents[" ".join(longest.split()[-30:]).strip('"')] += 1
    assert set(documents.values()) == {2}
    assert len(documents) == 72


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of math, rag, faq, creative"):
        load("maths")
