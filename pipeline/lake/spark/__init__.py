"""Spark for the pipeline: its settings and JARs, the JVM, sessions, and what a cluster needs."""
