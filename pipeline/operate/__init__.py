"""What an operator runs: ingest, apply, both, and what watches over them."""
