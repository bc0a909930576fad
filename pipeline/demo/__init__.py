"""The demo: a shop in an embedded PostgreSQL, replicated live and compared with its source at the end."""
