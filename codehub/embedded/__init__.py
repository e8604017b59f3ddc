"""PostgreSQL, Redis and S3 for one machine, from Python packages, and the small supervisor that runs them.

Owns how the programs are prepared, started, watched and stopped. Knows nothing of workspaces or Django models.
Everything listens on loopback with generated credentials; nothing here may need root rights.
"""

from codehub.embedded.orchestrate import build_services, services
from codehub.embedded.postgres import Postgres
from codehub.embedded.redis import Redis
from codehub.embedded.seaweed import Seaweed

__all__ = ["Postgres", "Redis", "Seaweed", "build_services", "services"]
