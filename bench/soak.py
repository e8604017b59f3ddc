"""`make soak`: seeded lives of the state machine for half an hour, on real PostgreSQL, with every invariant checked."""

import sys

from tests.soak import main

if __name__ == "__main__":
    sys.exit(main())
