"""The seed of a random test, printed so that it can be repeated."""

import os
import time


def seed_of_run() -> int:
    """Return the seed that PGDELTA_SEED asks for, or a new one."""
    return int(os.environ.get("PGDELTA_SEED", "") or time.time_ns() % 1_000_000)
