"""From a policy to a drafter: each one opens and runs behind the port, says what it adds to the epoch, and counts in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from canary.domain.drafter_policy import DRAFTERS as NAMES
from canary.domain.drafter_policy import FALLBACKS as NAMED_FALLBACKS
from canary.domain.errors import ModelError
from canary.domain.pairs import Arm, DrafterKind
from canary.domain.policy import Drafter
from canary.engine.drafters.build import DRAFTERS, FALLBACKS
from canary.engine.drafters.head_files import heads_digest
from canary.engine.memory import weight_bytes
from tests.engine.test_drafters_words import permuted
from tests.engine.test_runner import column, open_engine, requests, subject
from tests.engine.tiny import noisy_copy, save_tiny, tiny_heads, tiny_model, write_heads


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    model = tiny_model("qwen2", loopy=True, seed=3)
    other, words, _ = permuted(model)
    return {
        "target": save_tiny(folder / "target", model),
        "draft": save_tiny(folder / "draft", noisy_copy(model)),
        "other": save_tiny(folder / "other", other, words),
        "heads": write_heads(folder / "heads", tiny_heads(model)),
    }


def policies(places: dict[str, Path]) -> dict[str, Drafter]:
    draft, heads = str(places["draft"]), str(places["heads"])
    return {
        "ngram": Drafter("ngram", 3),
        "draft_model": Drafter("draft_model", 3, model=draft),
        "other_words": Drafter("draft_model", 3, model=str(places["other"])),
        "early_exit": Drafter("early_exit", 3, exit_layer=1),
        "heads": Drafter("heads", 3, heads=heads),
        "composite": Drafter("composite", 3, model=draft, fallback="draft_model"),
        "composite_exit": Drafter("composite", 3, exit_layer=1, fallback="early_exit"),
        "composite_heads": Drafter("composite", 3, heads=heads, fallback="heads"),
    }


def test_the_registry_is_what_a_policy_may_name() -> None:
    assert tuple(DRAFTERS) == NAMES
    assert tuple(FALLBACKS) == NAMED_FALLBACKS


def test_both_arms_run_with_every_drafter(places: dict[str, Path]) -> None:
    wanted = None
    for name, drafter in policies(places).items():
        drafter.check()
        # Fixed k: what an adaptive one drafts hangs on how long steps take here and now.
        engine = open_engine(subject(places["target"], drafter=replace(drafter, adaptive=False)))
        assert engine.info.drafter_kind is (DrafterKind.ONE_HOT if name == "ngram" else DrafterKind.DENSE)
        baseline, candidate = (engine.generate(requests(2, temperature=0.0), arm) for arm in Arm)
        wanted = wanted or [g.token_ids for g in baseline]
        assert [g.token_ids for g in baseline] == [g.token_ids for g in candidate] == wanted, name
        sampled = engine.generate(requests(2, temperature=0.9), Arm.CANDIDATE)
        assert sum(g.stats.num_draft_tokens for g in sampled) > 3, name
        assert all(column(g.rows, "row_tv").max() < 1e-4 for g in sampled), name
        for got in sampled:
            drafted = column(got.trace, "drafted")[:, 0] == 1
            rank, uniform = column(got.trace, "draft_pit")[drafted], column(got.trace, "accept_uniform")[drafted]
            assert ((rank >= 0) & (rank <= 1)).all() or name == "ngram"
            assert ((uniform >= 0) & (uniform < 1)).all()


def test_epochs_differ_and_say_why(places: dict[str, Path], tmp_path: Path) -> None:
    drafters = policies(places)
    drafters["exit_later"] = Drafter("early_exit", 3, exit_layer=2)
    drafters["other_heads"] = Drafter("heads", 3, heads=str(write_heads(tmp_path / "h", tiny_heads(tiny_model("qwen2"), seed=9))))
    infos = {name: open_engine(subject(places["target"], drafter=each)).info for name, each in drafters.items()}
    assert len({info.fingerprint for info in infos.values()}) == len(infos)
    assert infos["early_exit"].described["drafter_exit_layer"] == "1"
    assert infos["heads"].described["drafter_heads"] == heads_digest(places["heads"])
    assert infos["composite"].described["drafter_fallback"] == "draft_model"
    assert infos["composite"].described["drafter_max_ngram"] == "3"
    assert "drafter_tokenizer" in infos["other_words"].described
    assert "drafter_tokenizer" not in infos["draft_model"].described
    here = Drafter("draft_model", 3, model=str(places["draft"]), device="cpu")
    assert open_engine(subject(places["target"], drafter=here)).info.fingerprint == infos["draft_model"].fingerprint


def test_memory_counts_what_each_drafter_holds(places: dict[str, Path]) -> None:
    memory = {name: open_engine(subject(places["target"], drafter=each)).info.memory for name, each in policies(places).items()}
    for name in ("ngram", "early_exit", "composite_exit"):
        assert (memory[name]["drafter"], memory[name]["drafter_cache"]) == (0, 0), name
    assert memory["draft_model"]["drafter"] > 0
    assert memory["draft_model"]["drafter_cache"] == memory["draft_model"]["target_cache"]
    assert memory["composite"] == memory["draft_model"]
    three = weight_bytes(tiny_heads(tiny_model("qwen2"), 3))
    assert memory["heads"]["drafter"] >= three, "one head for each token that is asked for, and the fourth is not kept"
    assert memory["heads"]["drafter"] < three * 4 / 3
    assert memory["heads"]["drafter_cache"] == 0
    assert all("drafter_elsewhere" not in each for each in memory.values())


def test_drafters_that_cannot_be_built_name_their_field(places: dict[str, Path]) -> None:
    cases = {
        "subject.drafter.exit_layer: there are 2 layers, not 9": Drafter("early_exit", 3, exit_layer=9),
        "subject.drafter.exit_layer: an early_exit drafter": Drafter("early_exit", 3),
        "subject.drafter.heads: a heads drafter": Drafter("heads", 3),
        "subject.drafter.heads: .*config.json cannot be read": Drafter("heads", 3, heads="/nonexistent"),
        "subject.drafter.num_speculative_tokens: there are 4 heads": Drafter("heads", 5, heads=str(places["heads"])),
        "subject.drafter.fallback: a composite drafter cannot fall back on None": Drafter("composite", 3),
        "subject.drafter.device: there is no device cuda:99 here": Drafter(
            "draft_model", 3, model=str(places["draft"]), device="cuda:99"
        ),
    }
    for sentence, drafter in cases.items():
        with pytest.raises(ModelError, match=sentence):
            open_engine(subject(places["target"], drafter=drafter))
