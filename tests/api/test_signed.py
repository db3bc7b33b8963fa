"""The signed document: another key, another byte or too old an age is refused; the key is made once and stays secret."""

from __future__ import annotations

import base64
import json
import multiprocessing
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from canary.domain.errors import UsageError
from canary.domain.flag import Flag, Snapshot
from canary.flow.tools.signed import SigningKey, decode_public, encode_public, signed_document, verified
from canary.inmemory import InMemoryStore
from canary.store.signing_key import FILE, load_or_create
from tests.api.served import add_route, call, serving

KEY, OTHER = SigningKey(bytes(range(32))), SigningKey(bytes(32))
SNAPSHOT = Snapshot(7, 1_000.0, {"math": Flag("math", 500, "s").switched(True, reason="manual: ünïcode", at=3.5)})
TEXT = json.dumps(signed_document(SNAPSHOT, KEY, vouched_at=1_000.9))


def test_a_document_says_what_was_signed() -> None:
    found = verified(TEXT, KEY.public, now=1_060.0, max_age=60.0)
    assert (found.version, found.issued_at, found.flags) == (7, 1_000.0, SNAPSHOT.flags)
    assert verified(TEXT, KEY.public).kill_epoch == 1


def test_anybody_can_verify_it_with_the_bytes_as_they_are() -> None:
    body = json.loads(TEXT)
    public = Ed25519PublicKey.from_public_bytes(KEY.public)
    public.verify(base64.b64decode(body["signature"]), body["payload"].encode())
    payload = json.loads(body["payload"])
    assert (payload["version"], payload["issued_at"], payload["kill_epoch"]) == (7, 1_000, 1)
    assert body["payload"] == json.dumps(payload, sort_keys=True, separators=(",", ":")), "canonical"


def test_what_is_not_ours_is_refused() -> None:
    body = json.loads(TEXT)
    for change, where in (
        ({"payload": body["payload"].replace('"killed":true', '"killed":false')}, "/signature"),
        ({"payload": body["payload"] + " "}, "/signature"),
        ({"signature": base64.b64encode(bytes(64)).decode()}, "/signature"),
        ({"signature": "?"}, "/signature"),
        ({"format": "canary-flags-2"}, "/format"),
        ({"payload": 7}, ""),
        ({"surprise": "x"}, ""),
    ):
        with pytest.raises(UsageError) as refused:
            verified(json.dumps(body | change), KEY.public)
        assert refused.value.where == where
    for text in ("", "[]", "null", "{}", "[" * 100_000):
        with pytest.raises(UsageError):
            verified(text, KEY.public)
    with pytest.raises(UsageError, match=OTHER.key_id):
        verified(TEXT, OTHER.public)
    with pytest.raises(UsageError, match="61 s old"):
        verified(TEXT, KEY.public, now=1_061.0, max_age=60.0)


def test_a_public_key_survives_its_text_and_a_secret_one_shows_nothing() -> None:
    assert decode_public(f" {encode_public(KEY.public)}\n") == KEY.public
    for text in ("", "nonsense", encode_public(b"short")):
        with pytest.raises(UsageError):
            decode_public(text)
    assert repr(KEY) == f"SigningKey({KEY.key_id})"


def _public_of(home: Path) -> bytes:
    return load_or_create(home).public


def test_a_homes_key_is_made_once_and_is_its_owners_only(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "home"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert len(set(pool.map(_public_of, [home] * 8))) == 1
    assert [p.name for p in home.iterdir()] == [FILE]
    assert stat.S_IMODE((home / FILE).stat().st_mode) == 0o600
    (home / FILE).write_bytes(b"damaged")
    with pytest.raises(UsageError, match="no signing key"):
        load_or_create(home)
    assert (home / FILE).read_bytes() == b"damaged", "never replaced"


def test_the_api_serves_the_document_and_its_public_key_only() -> None:
    store = InMemoryStore()
    add_route(store, "math")
    with serving(store) as url:
        shown = call(f"{url}/api/v1/flags/key").json
        assert set(shown) == {"algorithm", "key_id", "public_key"}
        answer = call(f"{url}/api/v1/flags/snapshot.signed")
        assert answer.headers["cache-control"] == "no-store"
        found = verified(answer.body.decode(), decode_public(str(shown["public_key"])))
        assert set(found.flags) == {"math"}
