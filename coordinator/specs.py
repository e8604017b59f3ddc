"""What a runtime must know to start a workspace, from its entry in the catalogue.

Owns the translation of a catalogue row into a provider's value. Nothing here decides.
"""

from collections.abc import Collection
from uuid import UUID

from coordinator.providers.base import ContainerSpec
from workspaces.models import Image, Workspace


def spec_of(workspace_id: UUID, image: Image) -> ContainerSpec:
    return ContainerSpec(
        image=image.ref,
        command=tuple(str(word) for word in image.command),
        port=image.port,
        env={str(name): str(value) for name, value in image.env.items()},
        home=image.home,
        uid=image.uid,
        gid=image.gid,
        memory_mb=image.memory_mb,
        cpus=float(image.cpus),
        pids_limit=image.pids_limit,
        base_url="/" if image.strip_prefix else f"/w/{workspace_id}/",
        health_path=image.health_path,
    )


def load_specs(ids: Collection[UUID]) -> dict[UUID, ContainerSpec]:
    """In one statement; in none when nothing is asked."""
    if not ids:
        return {}
    found = Workspace.objects.filter(pk__in=ids).select_related("image")
    return {workspace.pk: spec_of(workspace.pk, workspace.image) for workspace in found}
