"""Spark: its session, settings and JARs, and what a cluster needs."""
