"""The signed flags document and the key that proves it, from memory; the secret half of the key never leaves the process."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from canary.api.deps import Api, caller_of
from canary.api.schemas import problems
from canary.api.seen import seen_by
from canary.domain.errors import UnreachableError
from canary.flow.tools.signed import SigningKey, encode_public, signed_document
from canary.wiring import signing_key


def router(api: Api) -> APIRouter:
    """Two endpoints. Without a home the key lives as long as the process."""
    key = SigningKey.new() if api.home is None else signing_key(api.home)
    made = APIRouter()

    @made.get("/api/v1/flags/snapshot.signed", responses=problems(), tags=["flags"])
    async def signed(request: Request, response: Response) -> dict[str, str]:
        """All flags that the key may see, as a document signed with Ed25519: `signature` is over the bytes of `payload`."""
        published, age = api.flags.published, api.flags.age_seconds
        if published is None or age is None:
            raise UnreachableError("no flag snapshot has been read yet", remedy="Serve the baseline and ask again.")
        response.headers["Cache-Control"] = "no-store"
        shown = seen_by(caller_of(request), published.snapshot)
        return signed_document(shown, key, max(0.0, api.clock() - age))

    @made.get("/api/v1/flags/key", responses=problems(), tags=["flags"])
    async def public_key() -> dict[str, str]:
        """The public key of `snapshot.signed`, in base64; keep a copy where the documents are verified."""
        return {"algorithm": "ed25519", "key_id": key.key_id, "public_key": encode_public(key.public)}

    return made
