"""A shop in an embedded PostgreSQL, replicated before one's eyes and compared at the end."""
