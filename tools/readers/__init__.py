"""Readers of silver besides pgdelta, tried on a lake that has each type, change of columns, mode and layout.

- `features`: the tables of the lake, and what each shows
- `lake`: the lake, made by pgdelta from an embedded server
- `read`: one reader, in an environment of its own; imports nothing of pgdelta
- `page`: `docs/reference/readers.md`, as a table of what each reader did
"""
