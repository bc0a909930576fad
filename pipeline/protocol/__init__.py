"""The pgoutput protocol without I/O: bytes → messages → whole transactions. Standard library only.

`messages` names what the wire carries, `decode` reads one message, `transactions` holds the legal order of
messages. Whatever is malformed has one outcome, `ProtocolError`.
"""
