"""What an operator runs besides the jobs: checks, plans, rebuilds, resyncs, maintenance, as-of queries."""
