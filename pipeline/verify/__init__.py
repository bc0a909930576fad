"""Compare silver with the source, and audit the chain of bronze commits."""
