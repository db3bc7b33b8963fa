"""Settings from the environment (`CANARY_*`), each with a default that works on a fresh machine."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What can be set from outside.

    Args:
        home: state of the embedded Postgres and of demos.
        cache: prepared models, shared by every home.
        database_url: an existing Postgres; none is started then.
        host, port: where `canary serve` listens.
        max_body_bytes: largest mirrored request.
    """

    model_config = SettingsConfigDict(env_prefix="CANARY_", extra="ignore")

    home: Path = Path(".canary")
    cache: Path = Field(default_factory=lambda: Path.home() / ".cache" / "canary")
    database_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8700
    max_body_bytes: int = 4 * 1024 * 1024
