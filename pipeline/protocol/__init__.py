"""The pgoutput protocol without I/O: bytes in, complete transactions out. Needs only the standard library.

`messages` defines the messages, `decode` decodes one, and `transactions` assembles them into the `events` of
transactions. `binary` converts values in binary format to text. Malformed input raises `ProtocolError` and
nothing else.
"""
