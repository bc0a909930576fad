"""The relations in force in a session, and what is remembered of its open streams.

A Relation message outside streams holds for the rest of the session. One inside a stream holds in that stream
only, because the columns may be of an ALTER TABLE that is not committed. The server keeps books in the same
way, and sends no relation again that holds already: a stream's relations hold for all once it is committed;
they are forgotten when it, or any of its subtransactions, is rolled back, and when it is prepared.

Two open streams may have described one table. Of what they say, as of what was said outside of them, the
latest holds.
"""

from pipeline.protocol.messages import Origin, Relation


class Relations:
    """Relations by oid, as the four bytes that changes carry, each with a number that grows as they come."""

    __slots__ = ("by_oid", "numbers")

    def __init__(self) -> None:
        """Hold none."""
        self.by_oid: dict[bytes, Relation] = {}
        self.numbers: dict[bytes, int] = {}

    def put(self, oid: bytes, relation: Relation, number: int) -> Relation:
        """Hold the relation as the latest of its oid; return it, or the equal one held before."""
        known = self.by_oid.get(oid)
        if known is None or known != relation:
            self.by_oid[oid] = known = relation
        self.numbers[oid] = number
        return known

    def put_newer(self, others: "Relations") -> tuple[Relation, ...]:
        """Hold those of the others that came later than what is held, and return them."""
        return tuple(
            self.put(oid, relation, others.numbers[oid])
            for oid, relation in others.by_oid.items()
            if others.numbers[oid] > self.numbers.get(oid, -1)
        )

    def clear(self) -> None:
        """Hold none."""
        self.by_oid.clear()
        self.numbers.clear()


class Stream:
    """A transaction that is streamed: between its first Stream Start and its end."""

    __slots__ = ("origin", "relations", "xid")

    def __init__(self, xid: int) -> None:
        """Begin with nothing described."""
        self.xid = xid
        self.relations = Relations()
        self.origin: Origin | None = None  # comes in the first segment, and is meant for all
