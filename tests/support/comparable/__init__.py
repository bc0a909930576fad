"""Rows of the source and of silver as values that can be compared, whatever their types.

Both sides become PostgreSQL's text, with two exceptions: floats by `repr` (so -0 is not 0 and NaN is NaN) and
arrays as tuples. A table is a multiset of such rows.
"""
