"""Spark and Delta: sessions, tables with positions, the log of who wrote what."""
