"""Oracles of the modes of silver tables: what the transactions of bronze leave, in plain Python."""
