"""The messages of one replication session in, the events of its transactions out, in order.

Rules of the session:

1. A transaction is Begin, then any Relation, Type, Origin, Insert, Update, Delete, Truncate and transactional
   Message, then Commit. A prepared one is the same between Begin Prepare and Prepare; Commit Prepared or
   Rollback Prepared comes later, perhaps in another session. Of one that only locked rows, 18 sends
   Prepare without Begin Prepare, and 15 to 17 send neither. Transactions never nest. A Message that is not
   transactional stands between them.
2. A streamed transaction comes in segments, each between Stream Start and Stream Stop, and ends with Stream
   Commit, Stream Prepare or Stream Abort. Segments stand where whole transactions stand and never nest, but
   many streams may be open. The first segment of a transaction is marked; it comes once more where the server
   begins anew, as each look by SQL makes it do, and voids what came before.
3. Stream Abort also ends single subtransactions. It may name what this session never streamed: 18 does so
   for a subtransaction that was streamed to an earlier one.
4. A relation is described before the first change that names it, and again whenever its shape changes; in
   every stream anew (`streams` says for how long). What one session described holds for that session only: a
   new session needs a new Assembler.
5. Changes are numbered from 0 within their transaction: Insert, Update, Delete, and Truncate once for each
   relation. Relation, Type, Origin and Message do not count, as their number differs between sessions.
   Streamed changes are not numbered, as some may yet be rolled back.
6. An illegal move or a malformed message breaks the session for good: BROKEN has no moves.
"""

from pipeline.protocol.assembler import Assembler
from pipeline.protocol.events import (
    Began,
    BeganPrepare,
    Change,
    Committed,
    CommittedPrepared,
    Described,
    Emitted,
    Event,
    Prepared,
    RolledBackPrepared,
    StreamAborted,
    StreamCommitted,
    StreamedChange,
    StreamedEmitted,
    StreamedTruncation,
    StreamPrepared,
    StreamStarted,
    StreamStopped,
    Truncation,
)
from pipeline.protocol.states import MOVES, State

__all__ = [
    "MOVES",
    "Assembler",
    "Began",
    "BeganPrepare",
    "Change",
    "Committed",
    "CommittedPrepared",
    "Described",
    "Emitted",
    "Event",
    "Prepared",
    "RolledBackPrepared",
    "State",
    "StreamAborted",
    "StreamCommitted",
    "StreamPrepared",
    "StreamStarted",
    "StreamStopped",
    "StreamedChange",
    "StreamedEmitted",
    "StreamedTruncation",
    "Truncation",
]
