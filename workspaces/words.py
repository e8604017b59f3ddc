"""The words for everything a workspace can be, do and suffer, in the reader's language.

Owns vocabulary only: phases, operations, steps, reasons, activities. Pure lookups by the names that the rows carry; how they are
put together is decided elsewhere.
"""

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from workspaces.phases import DesiredState, ErrorReason, Operation, Phase

# state of the screen -> (word, icon, tone)
_PHASES: dict[str, tuple[str, str, str]] = {
    Phase.PENDING: (gettext_noop("New"), "new", "new"),
    Phase.ARCHIVED: (gettext_noop("Archived"), "archived", "store"),
    Phase.STANDBY: (gettext_noop("Standby"), "standby", "rest"),
    Phase.RUNNING: (gettext_noop("Running"), "running", "good"),
    Phase.ERROR: (gettext_noop("Needs attention"), "error", "bad"),
    Phase.DELETING: (gettext_noop("Deleting"), "deleting", "new"),
    Phase.DELETED: (gettext_noop("Deleted"), "deleting", "new"),
}
_OPERATIONS: dict[str, str] = {
    Operation.PROVISIONING: gettext_noop("Preparing"),
    Operation.CREATE_EMPTY_ARCHIVE: gettext_noop("Preparing"),
    Operation.RESTORING: gettext_noop("Restoring"),
    Operation.STARTING: gettext_noop("Starting"),
    Operation.STOPPING: gettext_noop("Stopping"),
    Operation.ARCHIVING: gettext_noop("Archiving"),
    Operation.DELETING: gettext_noop("Deleting"),
}
DOING: dict[str, str] = {
    Operation.PROVISIONING: gettext_noop("Making an empty home directory."),
    Operation.CREATE_EMPTY_ARCHIVE: gettext_noop("Storing an empty archive."),
    Operation.RESTORING: gettext_noop("Unpacking the home from its archive."),
    Operation.STARTING: gettext_noop("Starting the IDE on its home."),
    Operation.STOPPING: gettext_noop("Stopping the IDE; the home stays on disk."),
    Operation.ARCHIVING: gettext_noop("Packing the home into object storage."),
    Operation.DELETING: gettext_noop("Removing the IDE and the home."),
}
THEN: dict[str, str] = {
    DesiredState.RUNNING: gettext_noop("Then it starts."),
    DesiredState.STANDBY: gettext_noop("Then it stops and stays on disk."),
    DesiredState.ARCHIVED: gettext_noop("Then it is archived."),
    DesiredState.DELETED: gettext_noop("Then it is deleted."),
}
WISHES: dict[str, str] = {
    DesiredState.RUNNING: gettext_noop("Asked to run; waiting for the controller."),
    DesiredState.STANDBY: gettext_noop("Asked to stop; waiting for the controller."),
    DesiredState.ARCHIVED: gettext_noop("Asked to be archived; waiting for the controller."),
    DesiredState.DELETED: gettext_noop("Asked to be deleted; waiting for the controller."),
}
ERRORS: dict[str, str] = {
    ErrorReason.MISMATCH: gettext_noop("What was found differs from what had to come out."),
    ErrorReason.UNREACHABLE: gettext_noop("The container engine or the object storage did not answer."),
    ErrorReason.ACTION_FAILED: gettext_noop("A step failed."),
    ErrorReason.TIMEOUT: gettext_noop("It took longer than allowed."),
    ErrorReason.RETRY_EXCEEDED: gettext_noop("It was tried several times and failed each time."),
    ErrorReason.DATA_LOST: gettext_noop("The home or its archive cannot be found."),
    ErrorReason.ARCHIVE_CORRUPTED: gettext_noop("The archive does not match its checksum."),
    ErrorReason.IMAGE_PULL_FAILED: gettext_noop("The image cannot be had."),
    ErrorReason.CONTAINER_WITHOUT_VOLUME: gettext_noop("An IDE runs without its home."),
}
_ACTIVITIES: dict[str, str] = {
    "http": gettext_noop("a page"),
    "request": gettext_noop("a page"),
    "websocket": gettext_noop("the editor's connection"),
    "typing": gettext_noop("typing"),
    "input": gettext_noop("typing"),
    "pointer": gettext_noop("the mouse"),
    "touch": gettext_noop("a touch"),
    "terminal": gettext_noop("terminal output"),
    "output": gettext_noop("terminal output"),
    "save": gettext_noop("saving"),
    "upload": gettext_noop("an upload"),
    "download": gettext_noop("a download"),
    "traffic": gettext_noop("traffic"),
    "api": gettext_noop("a script"),
    "script": gettext_noop("a script"),
}
_STEPS: dict[str, str] = {
    "queued": gettext_noop("Waiting for its turn"),
    "image": gettext_noop("Pulling the image"),
    "listen": gettext_noop("Waiting for the IDE to answer"),
    "repair": gettext_noop("Checking the archive that is there"),
    "archive": gettext_noop("Packing"),
    "upload": gettext_noop("Uploading"),
    "verify": gettext_noop("Reading back and checking"),
    "restore": gettext_noop("Unpacking"),
    "download": gettext_noop("Downloading"),
    "provision": gettext_noop("Making the home"),
    "start": gettext_noop("Starting"),
    "delete": gettext_noop("Removing the container"),
    "delete_volume": gettext_noop("Removing the volume"),
    "delete volume": gettext_noop("Removing the volume"),
}
# What the last observation found, by the reason it gave.
_FOUND: dict[str, str] = {
    "NotSeenYet": gettext_noop("It has not been looked at yet."),
    "NoVolume": gettext_noop("There is no home on disk."),
    "VolumeReady": gettext_noop("The home is on disk."),
    "NotWhole": gettext_noop("A home is on disk, but not all of it."),
    "NoArchive": gettext_noop("There is no archive."),
    "ArchiveReady": gettext_noop("The home is packed in object storage."),
    "MetaMissing": gettext_noop("The archive is there, its checksum file is not."),
    "ArchiveMissing": gettext_noop("The archive is not in object storage."),
    "NoContainer": gettext_noop("Nothing runs."),
    "ContainerStopped": gettext_noop("The container is there, but it does not run."),
    "OtherGeneration": gettext_noop("A container of an older home is in the way."),
    "ContainerReady": gettext_noop("The IDE takes traffic."),
    "NotListening": gettext_noop("The container runs, but its IDE does not answer yet."),
    "Healthy": gettext_noop("Every check passes."),
}
# The catalogue's first entries are rows, which no collector of messages sees.
CATALOGUE = (gettext_noop("Visual Studio Code in the browser, with a terminal."), gettext_noop("Notebooks, a terminal and an editor."))


def phase_words(phase: str) -> tuple[str, str, str]:
    word, icon, tone = _PHASES.get(phase, (phase, "new", "new"))
    return _(word), icon, tone


def operation_word(operation: str) -> str:
    return _(_OPERATIONS[operation]) if operation in _OPERATIONS else operation


def error_words(reason: str) -> str:
    return _(ERRORS[reason]) if reason in ERRORS else _("Something went wrong.")


def found_words(reason: str) -> str:
    """What an observation means; empty for a reason without words."""
    known = _FOUND.get(reason) or ERRORS.get(reason)
    return _(known) if known else ""


def activity_word(kind: str) -> str:
    return _(_ACTIVITIES[kind]) if kind in _ACTIVITIES else kind


def action_word(action: str) -> str:
    word = _STEPS.get(action)
    return _(word) if word else action


def step_word(*, action: str, step: str) -> str:
    word = _STEPS.get(step) or _STEPS.get(action)
    return _(word) if word else step
