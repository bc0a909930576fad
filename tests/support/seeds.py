"""The seed of a random test, printed so that it can be repeated."""

import os
import time
from random import Random


def seed_of_run() -> int:
    """Return the seed that PGDELTA_SEED asks for, or a new one."""
    return int(os.environ.get("PGDELTA_SEED", "") or time.time_ns() % 1_000_000)


def printed_rng(seed: int) -> Random:
    """Return the generator of a seed, which is printed."""
    print(f"PGDELTA_SEED={seed}")
    return Random(seed)
