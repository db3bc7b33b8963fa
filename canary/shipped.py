"""Where the files that travel with Canary are: in the checkout, or inside the installed wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """The folder `name` (`migrations` or `policies`).

    Args:
        name: as it is called at the top of the repository.

    Returns:
        The checkout's folder when running from one, else the wheel's copy.
    """
    checkout = PACKAGE.parent / name
    return checkout if (PACKAGE.parent / "pyproject.toml").exists() and checkout.is_dir() else PACKAGE / "_shipped" / name
