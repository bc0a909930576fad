"""Check the source for `pgdelta check`: find what a start would fail on, without changing anything."""
