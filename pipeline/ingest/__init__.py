"""The ingest job: committed transactions and copies of tables into bronze."""
