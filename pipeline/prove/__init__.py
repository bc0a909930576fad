"""Proofs: bronze is whole, silver equals the source."""
