"""Hooks for schemathesis: who calls, and what a deleted workspace must be like.

Knows of the server what the environment says: `RUN_URL`, `RUN_TOKEN` and that token's id, `RUN_TOKEN_ID`. The run must not end
the token it runs with.
"""

import os
from typing import Any

import requests
import schemathesis
from schemathesis.specs.openapi import checks

_NOBODYS = "00000000-0000-4000-8000-000000000000"
_deleted: set[str] = set()


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@schemathesis.auth(refresh_interval=None)
class Token:
    """The run's token; signing out gets one of its own each time."""

    def get(self, case: Any, context: Any) -> str:
        token = os.environ["RUN_TOKEN"]
        if case.operation.path.endswith("/auth/logout"):
            made = requests.post(f"{os.environ['RUN_URL']}/api/v1/tokens", json={"name": "x"}, headers=_bearer(token), timeout=30)
            token = made.json()["token"]
        return token

    def set(self, case: Any, data: str, context: Any) -> None:
        case.headers.update(_bearer(data))


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    if (case.path_parameters or {}).get("token_id") == os.environ["RUN_TOKEN_ID"]:
        case.path_parameters["token_id"] = _NOBODYS


@schemathesis.check
def nothing_is_used_after_its_end(ctx: Any, response: Any, case: Any) -> bool | None:
    """`use_after_free`, but for one call: deleting a workspace is asked for and answered with 202.

    Until everything is gone the workspace reads as on its way out, as it must; and nothing brings it back.
    """
    if not case.operation.path.startswith("/api/v1/workspaces/{workspace_id}"):
        found: bool | None = checks.use_after_free(ctx, response, case)
        return found
    key = str((case.path_parameters or {}).get("workspace_id", "")).lower()
    if case.method == "DELETE" and response.status_code == 202:
        _deleted.add(key)
    elif key in _deleted and response.status_code == 200 and "desired_state" in response.json():
        assert response.json()["desired_state"] == "DELETED"
    return None
