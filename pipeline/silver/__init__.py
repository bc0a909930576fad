"""Silver: bronze's changes become tables that equal the source's. Rooms from below to above:

- `types`: the silver type of each PostgreSQL type, and the SQL of its values
- `schema`: which columns a table has, and how they follow the source's
- `fold`: what the changes of a step leave of each row, by key, by row or as a log
- `write`: one table's steps become commits
- `read`: what analysts and commands read
- `compare`: silver beside the source

`decision` is the one table of next steps, `lake_facts` has what the lake records about a table for it, and
`doubts` are the tables that may differ from the source since an event.
"""
