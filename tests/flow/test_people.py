"""Nobody agrees to what is their own, however they spell their name and whichever key they show."""

from __future__ import annotations

import pytest

from canary.domain.access import NAMELESS, Role, person
from canary.domain.errors import ApprovalNeededError, SelfApprovalError
from canary.flow.tools.apply import apply_policy, approve_policy
from canary.flow.tools.keys import create_key
from canary.flow.tools.people import refuse_own
from canary.flow.tools.policy_files import dump, load_text
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, add_route, policy_of

SPELLINGS = ("Ann", "ann", " ANN ", "Ann\t", "\uff21\uff4e\uff4e")


def refused(store: InMemoryStore, author: str | None, actor: str) -> bool:
    with store.transaction() as tx:
        try:
            refuse_own(tx, author, actor, what="proposed this", where="here", remedy="Somebody else.")
        except SelfApprovalError:
            return True
    return False


@pytest.mark.parametrize("spelt", SPELLINGS)
def test_one_person_however_spelt(spelt: str) -> None:
    assert person(spelt) == "ann"
    store = InMemoryStore()
    assert refused(store, "Ann", spelt)
    assert refused(store, spelt, "ann")


def test_inner_blanks_and_case_rules_of_other_scripts() -> None:
    assert person("Ada  de\u00a0Lovelace") == person("ada de lovelace")
    assert person("STRASSE") == person("straße")
    assert person("Ann") != person("Anna")


def test_two_people_may_agree() -> None:
    store = InMemoryStore()
    assert not refused(store, "ann", "bob")
    assert not refused(store, None, "bob"), "of what nobody is known to have done"
    assert not refused(store, "cli", "bob")


def test_a_key_s_id_is_its_owner() -> None:
    store = InMemoryStore()
    made = create_key(store, "Ann", Role.APPROVER, "root", NOW).key
    for actor in (made.key_id, made.key_id.upper(), f"cnry_{made.key_id}"):
        assert refused(store, "ann", actor), "a key's id is no second person"
        assert refused(store, actor, " Ann")
        assert not refused(store, "bob", actor)
    assert not refused(store, "ann", "0123456789ab"), "an id of no key is a name"


@pytest.mark.parametrize("name", [*sorted(NAMELESS), "Break-Glass", " CLI"])
def test_what_names_no_person_agrees_to_nothing(name: str) -> None:
    store = InMemoryStore()
    assert refused(store, "ann", name)
    assert refused(store, None, name)


def test_a_looser_policy_is_not_approved_by_its_author_spelt_otherwise() -> None:
    store = InMemoryStore()
    add_route(store, "math")
    text = dump(policy_of("math")) + "gates:\n  speed_ratio: 0.9\n"
    policy = load_text(text, name="math")
    with pytest.raises(ApprovalNeededError):
        apply_policy(store, policy, text, NOW, "Ann")
    for actor in ("ann ", "ANN", "break-glass", "cli"):
        with pytest.raises(SelfApprovalError):
            approve_policy(store, "math", policy.content_hash, actor, NOW)
    assert approve_policy(store, "math", policy.content_hash, "Bob", NOW).policy_hash == policy.content_hash
