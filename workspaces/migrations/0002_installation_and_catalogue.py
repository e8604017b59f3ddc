"""Name this installation and offer a catalogue that works out of the box."""

from typing import Any

from django.db import migrations

CATALOGUE: list[dict[str, Any]] = [
    {
        "name": "code-server",
        "title": "code-server",
        "description": "Visual Studio Code in the browser, with a terminal.",
        "ref": "codehub/code-server:latest",
        "command": [],
        "port": 8080,
        "env": {},
        "home": "/home/coder",
        "strip_prefix": True,
        "health_path": "/healthz",
        "runtimes": ["docker"],
        "position": 10,
    },
    {
        "name": "jupyterlab",
        "title": "JupyterLab",
        "description": "Notebooks, a terminal and an editor.",
        "ref": "",
        "command": [
            "jupyter",
            "lab",
            "--no-browser",
            "--allow-root",
            "--ServerApp.sock={socket}",
            "--ServerApp.base_url={base_url}",
            "--ServerApp.root_dir={home}",
            "--IdentityProvider.token=",
            "--PasswordIdentityProvider.hashed_password=",
            "--ServerApp.allow_remote_access=True",
            "--ServerApp.terminado_settings=shell_command=['/bin/sh']",
            "--LabApp.news_url=None",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        ],
        "port": 8888,
        "env": {},
        "home": "/home/coder",
        "strip_prefix": False,
        "health_path": "/api",
        "runtimes": ["process"],
        "position": 20,
    },
]


def fill(apps: Any, schema_editor: Any) -> None:
    apps.get_model("workspaces", "Installation").objects.get_or_create(singleton=True)
    image = apps.get_model("workspaces", "Image")
    for entry in CATALOGUE:
        image.objects.get_or_create(name=entry["name"], defaults=entry)


class Migration(migrations.Migration):
    dependencies = [("workspaces", "0001_initial")]

    # Nothing is taken away on the way back: an operator may have changed the entries.
    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
