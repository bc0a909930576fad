"""One scenario of the captures: SQL that is run on real servers, and what its messages mean."""

from dataclasses import dataclass, field

Step = str | tuple[int, str]
"""A transaction, or a part of one with the number of the session that runs it; a text is of session 1."""


@dataclass(frozen=True)
class Scenario:
    """One slot's worth of transactions: `setup` runs before the slot is created.

    Every table is published; if there is a table `filler`, only `t` is. `is_streamed` requests the highest
    protocol version and kind of streaming that the server has. What `is_live` is read by a replication
    session while it is done, each step before the next; else all is read by SQL afterwards.
    """

    name: str
    setup: tuple[str, ...]
    transactions: tuple[Step, ...]
    meaning: tuple[str, ...]
    since: int = 10
    until: int = 99
    options: dict[str, str] = field(default_factory=dict)
    encoding: str = "UTF8"
    is_streamed: bool = False
    is_live: bool = False


FILL = "INSERT INTO filler SELECT repeat('x', 6800) FROM generate_series(1, 10)"
"""More than the 64 kB that the servers keep of all open transactions: the largest is then streamed as far as
it has come. The table is not published, so what fills the memory is not in the captures."""
SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "CREATE TABLE filler (v text)",
    "ALTER TABLE filler ALTER v SET STORAGE PLAIN",
)
T = "public.t d (id int4 *, v text)"
