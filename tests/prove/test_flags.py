"""The stock OpenFeature provider over HTTP and ours in process agree on 10,000 units at every stage, killed and stale too."""

from __future__ import annotations

import pytest

from canary.inmemory import InMemoryStore
from tests.api.served import add_route, serving
from tests.client.agree import agree_everywhere
from tests.client.test_openfeature import Leaving

UNITS = 10_000


@pytest.mark.prove
@pytest.mark.timeout(3_600)
def test_both_providers_agree_on_ten_thousand_units() -> None:
    """A3.21, A5.13."""
    inner = InMemoryStore()
    add_route(inner, "math")
    store = Leaving(inner)
    with serving(store) as url:
        compared = agree_everywhere(inner, url, store.leave, [f"user-{at}" for at in range(UNITS)])
    print(compared)
    assert all(compared[name] >= UNITS for name in ("0 %", "5 %", "10 %", "100 %", "killed", "stale"))
