"""Reports of runs, tables and the slot: copies in progress, alerts, metrics, the JSON log, the status."""
