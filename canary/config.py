"""Settings from the environment (`CANARY_*`), each with a default that works on a fresh machine."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Webhook(BaseModel):
    """Where notices go; policies know it by its name only.

    Args:
        url: http or https, of an address that the operator chose.
        secret: what messages are signed with.
    """

    url: str = Field(pattern=r"^https?://")
    secret: SecretStr


class Settings(BaseSettings):
    """What can be set from outside.

    Args:
        home: state of the embedded Postgres and of demos.
        cache: prepared models, shared by every home.
        database_url: an existing Postgres; none is started then.
        host, port: where `canary serve` listens.
        max_body_bytes: largest mirrored request.
        peers: base URLs of the other replicas, separated by commas; each hears of every kill at once.
        peer_token: the secret that all replicas share, in place of an API key.
        api_url: base URL of an API, which a scheduler that serves no flags asks for kill drills; default: the peers.
        ofrep_rate, ofrep_burst: flag evaluations over HTTP, a second and at once, of one client address; a rate of 0 is no limit.
        max_streams: flag event streams that may be open at once.
        webhooks: where notices go, by name, as JSON: {"NAME": {"url": "https://...", "secret": "..."}}.
        content_days, number_days: how long prompts and answers are kept, and how long pairs and observations.
    """

    model_config = SettingsConfigDict(env_prefix="CANARY_", extra="ignore")

    home: Path = Path(".canary")
    cache: Path = Field(default_factory=lambda: Path.home() / ".cache" / "canary")
    database_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8700
    max_body_bytes: int = 4 * 1024 * 1024
    peers: str = ""
    peer_token: SecretStr | None = None
    api_url: str = ""
    ofrep_rate: float = Field(5_000.0, ge=0)
    ofrep_burst: float = Field(10_000.0, ge=1)
    max_streams: int = Field(1_000, ge=0)
    webhooks: dict[str, Webhook] = Field(default_factory=dict)
    content_days: int = Field(30, ge=1)
    number_days: int = Field(400, ge=1)
