"""Operators' commands besides the jobs: checks, plans, rebuilds, resyncs, moves and maintenance."""
