"""Delta Lake, and nothing of bronze or silver: tables, their log, commits and transaction ids, Spark."""
