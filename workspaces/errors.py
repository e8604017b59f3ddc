"""What a person did wrong, or asked for at the wrong moment: a code, a sentence and facts.

The services raise these; the doors map them to HTTP. No HTTP in here.
"""

from typing import Any


class RequestError(Exception):
    """A wish that cannot be granted. `code` is stable and part of the API; the message is for people."""

    code = "invalid"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class InvalidRequestError(RequestError):
    """The input is wrong. `facts["fields"]`, where given, maps field names to lists of sentences."""

    code = "invalid"


class NotFoundError(RequestError):
    """Unknown, deleted, or not the caller's: indistinguishable on purpose."""

    code = "not_found"


class NotAllowedError(RequestError):
    code = "permission_denied"


class OperationInProgressError(RequestError):
    """An operation runs; `queue=True` would have stored the wish for later."""

    code = "operation_in_progress"


class RecoverFirstError(RequestError):
    code = "recover_first"


class NotInErrorError(RequestError):
    code = "not_in_error"


class RecoveryRefusedError(RequestError):
    """The chosen strategy would hide or destroy a home that is still there, or has nothing to restore."""

    code = "recovery_refused"


class IdempotencyConflictError(RequestError):
    code = "idempotency_conflict"


class StaleError(RequestError):
    """Somebody changed the workspace since the caller last read it."""

    code = "stale"


class LimitExceededError(RequestError):
    """A running limit is reached. `facts["running"]` lists the caller's workspaces that count."""

    code = "limit_exceeded"
