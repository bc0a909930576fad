"""Messages of a small shop, and how they are seen."""

from collections.abc import Iterable

from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Begin, Column, Commit, Message, Relation
from pipeline.tail.selection import TailMessage, TailReader
from pipeline.tail.text_format import TextFormat
from tests.support.protocol.encode import encode

TIME = 800_000_000_123_456
WHEN = "2025-05-08 06:13:20.123Z"
ITEM = Relation(
    7,
    "public",
    "item",
    "d",
    (
        Column(True, "id", 23, -1),
        Column(False, "name", 25, -1),
        Column(False, "price", 1700, 655366),
    ),
)
NOTE = Relation(8, "public", "Odd name", "f", (Column(True, "a b", 25, -1),))
BEGIN = Begin(LSN(0x16B3748), TIME, 745)
COMMIT = Commit(0, LSN(0x16B3748), LSN(0x16B3778), TIME)


def type_name(oid: int, modifier: int) -> str:
    """Stand in for the catalog."""
    names = {23: "integer", 25: "text", 1700: "numeric"}
    return names.get(oid, f"type {oid}") + (f"({modifier})" if modifier != -1 else "")


def see(
    messages: Iterable[Message], reading: TailReader | None = None, session: int = 1
) -> list[TailMessage]:
    """Return what a session of the server shows with these messages."""
    reading = reading or TailReader()
    found = [reading.read(encode(message), session) for message in messages]
    return [seen for seen in found if seen is not None]


def bodies(seen: Iterable[TailMessage], **options: bool | int) -> list[str]:
    """Return the lines without time, LSN and xid; what is inside a frame is indented."""
    lines = TextFormat(type_name, **options)  # type: ignore[arg-type]
    return [lines.write(one)[49:] for one in seen]


def inside(*messages: Message) -> list[Message]:
    """Return a whole transaction with these messages."""
    return [BEGIN, *messages, COMMIT]
