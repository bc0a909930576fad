"""Values in the binary formats of PostgreSQL's types, turned into PostgreSQL's own text.

The text is what the server would have sent in text format under the settings that sessions pin (ISO dates,
UTC, `postgres` intervals, shortest floats, hex bytea, the money of locale C). There is one short file for
each family of types; which type is read by which function, `types` says. A function takes a value's bytes and
returns its text in the encoding of the session; for bytes that are none of its type it raises one of
`types.FAULTS`, never another exception, and asks for no memory that the bytes do not account for.
"""
