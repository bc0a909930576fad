"""Rows of the source under a shared snapshot: copied, or as sums that can be compared."""
