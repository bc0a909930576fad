"""Spark: its session, settings and JARs."""
