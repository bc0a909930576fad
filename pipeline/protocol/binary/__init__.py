"""Convert values in the binary format of their type to PostgreSQL's text format.

The text is what the server would have sent in text format, under the settings that our sessions pin (ISO
dates, UTC, `postgres` intervals, shortest floats, hex bytea, money of locale C). There is one short file for
each family of types; `converters` maps a type to its function. A function takes the bytes of a value and
returns its text in the session's encoding. For malformed bytes it raises one of `converters.FAULTS`, never
another exception, and it never allocates more memory than the bytes account for.
"""
