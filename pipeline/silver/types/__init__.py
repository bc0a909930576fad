"""Types: the silver type of each PostgreSQL type, and SQL that makes its values. Pure.

- `types`: PostgreSQL type → Delta type
- `text_parsers`: SQL for the value of a PostgreSQL text, and for what does not fit
- `comparable_text`, `stream_text`: one text for equal values, as silver and as the source prints them
"""
