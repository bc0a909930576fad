"""A PostgreSQL server of our own, started and stopped with its user."""
