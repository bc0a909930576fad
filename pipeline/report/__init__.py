"""Reports of runs, tables and the slot: copies under way, alerts, metrics, the JSON log, the status."""
