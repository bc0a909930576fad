"""Bronze: the append-only log of committed changes, its relation versions, and what ingest commits to it."""
