"""The vocabulary of the state model: plain enums and the tables that relate them.

Owns the names used in the database, the API and on the screen. Must not import Django or do I/O:
both the pure state core and the doors build on it.
"""

from enum import StrEnum


class Phase(StrEnum):
    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"
    ERROR = "ERROR"
    DELETING = "DELETING"
    DELETED = "DELETED"


class DesiredState(StrEnum):
    RUNNING = "RUNNING"
    STANDBY = "STANDBY"
    ARCHIVED = "ARCHIVED"
    DELETED = "DELETED"


class Operation(StrEnum):
    NONE = "NONE"
    PROVISIONING = "PROVISIONING"
    CREATE_EMPTY_ARCHIVE = "CREATE_EMPTY_ARCHIVE"
    RESTORING = "RESTORING"
    STARTING = "STARTING"
    STOPPING = "STOPPING"
    ARCHIVING = "ARCHIVING"
    DELETING = "DELETING"


class Action(StrEnum):
    """One actuator run. An operation is one or two of these, in a fixed order."""

    PROVISION = "provision"
    RESTORE = "restore"
    ARCHIVE = "archive"
    DELETE_VOLUME = "delete_volume"
    START = "start"
    DELETE = "delete"


class ErrorReason(StrEnum):
    MISMATCH = "Mismatch"
    UNREACHABLE = "Unreachable"
    ACTION_FAILED = "ActionFailed"
    TIMEOUT = "Timeout"
    RETRY_EXCEEDED = "RetryExceeded"
    DATA_LOST = "DataLost"
    ARCHIVE_CORRUPTED = "ArchiveCorrupted"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_WITHOUT_VOLUME = "ContainerWithoutVolume"


class RecoveryStrategy(StrEnum):
    REOBSERVE = "reobserve"
    RESTORE_ARCHIVE = "restore_archive"
    START_EMPTY = "start_empty"


class ConditionKey(StrEnum):
    VOLUME_READY = "storage.volume_ready"
    ARCHIVE_READY = "storage.archive_ready"
    CONTAINER_READY = "infra.container_ready"
    HEALTHY = "policy.healthy"


class AttemptState(StrEnum):
    """QUEUED by the controller, RUNNING once an executor took it, then exactly one of the rest."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    LOST = "LOST"


LEVELS: dict[Phase, int] = {
    Phase.PENDING: 0,
    Phase.ARCHIVED: 5,
    Phase.STANDBY: 10,
    Phase.RUNNING: 20,
}

RETRYABLE_REASONS = frozenset({ErrorReason.MISMATCH, ErrorReason.UNREACHABLE, ErrorReason.ACTION_FAILED})

# Losses an operator may answer with an older archive or an empty home; for all else only a new look helps.
LOSS_REASONS = frozenset({ErrorReason.DATA_LOST, ErrorReason.ARCHIVE_CORRUPTED, ErrorReason.CONTAINER_WITHOUT_VOLUME})
