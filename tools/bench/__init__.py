"""Benchmarks: `make bench` prints figures with their limits, on servers and lakes that it makes itself."""
