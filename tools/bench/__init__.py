"""Benchmarks: `make bench`. Ratios measured within one run, on servers and lakes that it makes itself."""
