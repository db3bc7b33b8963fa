"""What the parts of `tests.bench.engine` share: bars, figures, and the model and prompts that are loaded when first asked for."""

from __future__ import annotations

import json
import random
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from canary.engine import checkpoints
from canary.engine.forward import FAST as FAST
from canary.engine.forward import RowForward

PROMPTS = Path(__file__).parents[2] / "canary" / "cli" / "demo" / "prompts"
ROUTES = ("math", "rag", "faq", "creative")
HALF, SINGLE = "bfloat16", "float32"
K = 4
MAX_NGRAM = 3  # of the copying drafter
ROWS = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """What a median has to reach; `most` turns it round."""

    must: float
    stretch: float
    most: bool = False

    def judge(self, median: float) -> str:
        reached = (lambda bar: median <= bar) if self.most else (lambda bar: median >= bar)
        return "stretch" if reached(self.stretch) else "ok" if reached(self.must) else "MISS"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    name: str
    what: str
    dtype: str
    forward: str
    values: tuple[float, ...]
    bar: Bar | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        return "" if self.bar is None else self.bar.judge(self.median)

    def line(self) -> str:
        bar = "" if self.bar is None else f"{self.bar.must:7.2f}{self.bar.stretch:7.2f}  {self.verdict}"
        spread = f"{self.median:8.2f}{min(self.values):8.2f}{max(self.values):8.2f}"
        return f"{self.name:24}{self.what:14}{self.dtype:10}{self.forward:7}{spread}{bar}"


@dataclass(slots=True)
class Setup:
    """The model in both dtypes, loaded when first asked for, and the routes' prompts as tokens."""

    path: Path
    prompts: int
    new: int
    rng: random.Random
    _loaded: dict[str, tuple[PreTrainedModel, Any]] = field(default_factory=dict)
    _rows: dict[tuple[str, str], RowForward] = field(default_factory=dict)

    def model(self, dtype: str) -> PreTrainedModel:
        if dtype not in self._loaded:
            self._loaded[dtype] = checkpoints.load(self.path, dtype)
        return self._loaded[dtype][0]

    @property
    def words(self) -> Any:
        if not self._loaded:
            self.model(HALF)
        return next(iter(self._loaded.values()))[1]

    def rows(self, dtype: str, forward: str) -> RowForward:
        if (dtype, forward) not in self._rows:
            self._rows[dtype, forward] = RowForward(self.model(dtype), ROWS, forward=forward)
        return self._rows[dtype, forward]

    def tokens(self, route: str, count: int) -> list[list[int]]:
        lines = (PROMPTS / f"{route}.jsonl").read_text().splitlines()
        chats = [json.loads(line)["messages"] for line in self.rng.sample(lines, min(count, len(lines)))]
        texts = [self.words.apply_chat_template(c, add_generation_prompt=True, tokenize=False) for c in chats]
        return [self.words(t, add_special_tokens=False)["input_ids"] for t in texts]
