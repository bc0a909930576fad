"""Operators' commands besides the jobs: checks, plans, rebuilds, resyncs, maintenance, as-of queries."""
