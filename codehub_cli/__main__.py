"""`python -m codehub_cli` is `codehub`."""

import sys

from codehub_cli.main import main

sys.exit(main())
