"""What this machine lacks for the tests: printed loudly, and turned into the pytest expression `make test` uses.

Owns the two questions "does a Docker engine answer" and "is there a browser". `CODEHUB_TEST_REQUIRE=docker,browser`
makes their absence a failure, as in CI. Must not import pytest or Django.
"""

import os
import shutil
import socket
import sys
from functools import lru_cache

NEEDS = {
    "docker": "no Docker engine answers on its local socket (Debian: docker.io)",
    "browser": "there is no `chromium` on the PATH (Debian: chromium)",
}


@lru_cache(maxsize=1)
def missing() -> dict[str, str]:
    """What is not there, with the reason for people."""
    present = {"docker": _engine_answers(), "browser": shutil.which("chromium") is not None}
    return {need: why for need, why in NEEDS.items() if not present[need]}


def _engine_answers() -> bool:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(5)
        try:
            engine.connect("/var/run/docker.sock")
            engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b"200 OK" in engine.recv(64)
        except OSError:
            return False


def main() -> int:
    required = {word.strip() for word in os.environ.get("CODEHUB_TEST_REQUIRE", "").split(",")}
    for need, why in missing().items():
        verdict = "REQUIRED AND MISSING" if need in required else f"LEFT OUT: tests marked `{need}`"
        print(f"\n*** {verdict}: {why}\n", file=sys.stderr)
    if required & set(missing()):
        return 1
    print(" and ".join(f"not {need}" for need in missing()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
