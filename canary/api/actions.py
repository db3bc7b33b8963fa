"""Which action every endpoint is, by method and path: the one table that the gate asks. What has no row here is not served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from canary.domain.access import Action, Reach


@dataclass(frozen=True, slots=True)
class Entry:
    """What one endpoint needs.

    Args:
        reach: how much of the service it touches; with `Reach.ROUTE` its path names the route, by `{route}` or a flag's `{key}`.
    """

    action: Action
    reach: Reach = Reach.ROUTE


LISTED, WHOLE = Reach.LISTED, Reach.WHOLE

ACTIONS: Mapping[str, Entry] = {
    "POST /ofrep/v1/evaluate/flags/{key}": Entry(Action.FLAGS),
    "POST /ofrep/v1/evaluate/flags/{key}/": Entry(Action.FLAGS),
    "POST /ofrep/v1/evaluate/flags": Entry(Action.FLAGS, LISTED),
    "POST /ofrep/v1/evaluate/flags/": Entry(Action.FLAGS, LISTED),
    "GET /ofrep/v1/events": Entry(Action.FLAGS, LISTED),
    "GET /api/v1/flags/snapshot.signed": Entry(Action.FLAGS, LISTED),
    "GET /api/v1/flags/key": Entry(Action.OPEN, WHOLE),
    "GET /healthz": Entry(Action.OPEN, WHOLE),
    "GET /api/v1/openapi.json": Entry(Action.OPEN, WHOLE),
    "GET /schemas/policy.json": Entry(Action.OPEN, WHOLE),
    "GET /api/v1/flags/snapshot": Entry(Action.FLAGS, LISTED),
    "GET /api/v1/routes": Entry(Action.READ, LISTED),
    "GET /api/v1/routes/{route}": Entry(Action.READ),
    "GET /api/v1/routes/{route}/verdict": Entry(Action.READ),
    "GET /api/v1/routes/{route}/evidence": Entry(Action.READ),
    "GET /api/v1/routes/{route}/pairs": Entry(Action.READ),
    "GET /api/v1/routes/{route}/pairs/{pair_id}/content": Entry(Action.CONTENT),
    "GET /api/v1/routes/{route}/pins": Entry(Action.READ),
    "GET /api/v1/routes/{route}/pins/{unit}": Entry(Action.READ),
    "PUT /api/v1/routes/{route}/pins/{unit}": Entry(Action.OPERATE),
    "DELETE /api/v1/routes/{route}/pins/{unit}": Entry(Action.OPERATE),
    "POST /api/v1/routes/{route}/kill": Entry(Action.KILL),
    "POST /api/v1/routes/{route}/unkill": Entry(Action.OPERATE),
    "POST /api/v1/kill": Entry(Action.KILL, WHOLE),
    "POST /api/v1/unkill": Entry(Action.OPERATE, WHOLE),
    "POST /api/v1/kill/drill": Entry(Action.OPERATE, WHOLE),
    "GET /api/v1/kills": Entry(Action.READ, WHOLE),
    "POST /api/v1/flags/held": Entry(Action.FLAGS, LISTED),
    "POST /api/v1/peers/kills": Entry(Action.PEER, WHOLE),
    "POST /api/v1/peers/clients": Entry(Action.PEER, WHOLE),
    "POST /api/v1/peers/drill": Entry(Action.PEER, WHOLE),
    "GET /api/v1/rollouts": Entry(Action.READ, LISTED),
    "GET /api/v1/rollouts/{route}": Entry(Action.READ),
    "POST /api/v1/rollouts/{route}/pause": Entry(Action.OPERATE),
    "POST /api/v1/rollouts/{route}/resume": Entry(Action.OPERATE),
    "POST /api/v1/rollouts/{route}/abort": Entry(Action.OPERATE),
    "POST /api/v1/rollouts/{route}/retry": Entry(Action.OPERATE),
    "POST /api/v1/rollouts/{route}/approve": Entry(Action.APPROVE),
    "POST /api/v1/rollouts/{route}/reject": Entry(Action.APPROVE),
    "GET /api/v1/policies": Entry(Action.READ, LISTED),
    "GET /api/v1/policies/{route}": Entry(Action.READ),
    "PUT /api/v1/policies/{route}": Entry(Action.POLICY),
    "GET /api/v1/policies/{route}/proposal": Entry(Action.READ),
    "POST /api/v1/policies/{route}/diff": Entry(Action.READ),
    "POST /api/v1/policies/{route}/approve": Entry(Action.APPROVE),
    "GET /api/v1/audit": Entry(Action.AUDIT, LISTED),
    "GET /api/v1/audit/{route}": Entry(Action.AUDIT),
    "GET /api/v1/audit/{route}/chain": Entry(Action.AUDIT),
    "GET /api/v1/jobs": Entry(Action.READ, WHOLE),
    "GET /api/v1/jobs/{name}": Entry(Action.READ, WHOLE),
    "POST /api/v1/jobs/{name}/run": Entry(Action.OPERATE, WHOLE),
    "POST /api/v1/jobs/{name}/pause": Entry(Action.OPERATE, WHOLE),
    "POST /api/v1/jobs/{name}/resume": Entry(Action.OPERATE, WHOLE),
    "POST /api/v1/observations": Entry(Action.INGEST, LISTED),
    "POST /api/v1/feedback": Entry(Action.INGEST, LISTED),
    "GET /api/v1/keys": Entry(Action.KEYS, WHOLE),
    "POST /api/v1/keys": Entry(Action.KEYS, WHOLE),
    "POST /api/v1/keys/{key_id}/rotate": Entry(Action.KEYS, WHOLE),
    "DELETE /api/v1/keys/{key_id}": Entry(Action.KEYS, WHOLE),
}
