"""Compare: silver beside the source.

- `source_rows`, `compared_rows`, `row_hashes`: rows of both sides, as sums of hashes of equal texts
- `file_fingerprints`: sums of whole tables, of files that are read once
- `comparable_columns`, `differing_rows`: which columns, and which rows differ
- `gap_comparison`: after a gap of the stream; `adoption`: a table of another program
- `clone`: silver as one snapshot of the source sees it
"""
