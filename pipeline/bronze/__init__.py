"""The append-only log of committed changes: its schema, its staged files, its relation versions."""
