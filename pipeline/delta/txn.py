"""Transaction ids and what a commit records of itself, as Delta's `txn` actions and commit info.

Every commit of pgdelta records an application id and a version together with its data; exactly-once rests on
that. The grammar of these ids is in this file and nowhere else. The version of
`pgdelta:<pipeline>:<generation>` is the offset of the table. A suffix makes a separate id for what must be
counted separately, because Delta skips a write whose id and version the table has already:

    kind        suffix              version
    OFFSET                          LSN up to which the table is complete
    PART        #<n>                LSN of a transaction that needs several writes; this is the n-th
    COPIED      #copied/<copy id>   LSN of copied rows that changes of the same input follow
    KEY_RANGES  #keys               id of the partial copy whose rows were written
    REBUILD     /rebuild            time in nanoseconds of a rebuild up to an LSN below the table's offset
    BACKFILL    +<oid>.<number>     LSN of the ALTER TABLE that added the column with this attribute number
    SHARED      #shared/<table>     offset of a source's table whose rows a shared table has
    CHUNKS      #copy/<table>       number of chunks that bronze holds, of all copies of a table
    COPY_CHUNKS #copy/<copy id>     the same, of one copy; earlier versions of pgdelta recorded it
    PREPARED    #prepared           LSN up to which prepared transactions are recorded
    EPOCH       #epoch              number of starts of ingest
    FENCE       #fence              number of the lease of apply under which the table was claimed
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = "pgdelta"
"""The key by which the user metadata of a commit shows that pgdelta made it."""

_SETTINGS = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class TxnKind(enum.Enum):
    """What a transaction id counts; the value is its suffix, `{}` a number in it, `{table}` a name."""

    OFFSET = ""
    PART = "#{}"
    COPIED = "#copied/{}"
    KEY_RANGES = "#keys"
    REBUILD = "/rebuild"
    BACKFILL = "+{}.{}"
    SHARED = "#shared/{table}"
    CHUNKS = "#copy/{table}"
    COPY_CHUNKS = "#copy/{}"
    PREPARED = "#prepared"
    EPOCH = "#epoch"
    FENCE = "#fence"

    @property
    def is_part(self) -> bool:
        """Whether the rows of such a commit are part of what the next OFFSET completes."""
        return self in (TxnKind.PART, TxnKind.COPIED)


_NUMBER, _TABLE = re.escape("{}"), re.escape("{table}")


def _pattern(kind: TxnKind) -> str:
    name = rf"(?P<{kind.name}_SCHEMA>[\w~%-]+)\.(?P<{kind.name}_TABLE>[\w~%-]+)"
    suffix = re.escape(kind.value).replace(_NUMBER, "[0-9]+").replace(_TABLE, name)
    return f"(?P<{kind.name}>{suffix})"


_SUFFIXES = "|".join(_pattern(kind) for kind in TxnKind if kind.value)
_GRAMMAR = re.compile(rf"pgdelta:(?P<pipeline>.*):(?P<generation>[0-9]+)(?:{_SUFFIXES})?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TxnId:
    """An application id of pgdelta; `numbers` are those in its suffix, `table` is the name."""

    pipeline: str
    generation: int = 1
    kind: TxnKind = TxnKind.OFFSET
    numbers: tuple[int, ...] = ()
    table: TableName | None = None

    def __str__(self) -> str:
        table = ".".join(map(_quoted, self.table or ()))
        suffix = self.kind.value.format(*self.numbers, table=table)
        return f"pgdelta:{self.pipeline}:{self.generation}{suffix}"

    def of(self, kind: TxnKind, *numbers: int, table: TableName | None = None) -> TxnId:
        """Return the id of another kind, for the same pipeline and generation."""
        return replace(self, kind=kind, numbers=numbers, table=table)

    @property
    def advances(self) -> bool:
        """Whether the version is the offset of the table."""
        return self.kind is TxnKind.OFFSET

    @property
    def offset_id(self) -> TxnId:
        """The id of the table's offset."""
        return self.of(TxnKind.OFFSET)

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> TxnId | None:
        """Return the id that a text is, None if it is not one of pgdelta's."""
        match = _GRAMMAR.fullmatch(text)
        if match is None:
            return None
        kind = TxnKind.__members__.get(match.lastgroup or "", TxnKind.OFFSET)
        named = match.groupdict()
        if (name := named.get(f"{kind.name}_TABLE")) is not None:
            table = TableName(unquote(named[f"{kind.name}_SCHEMA"]), unquote(name))
            return TxnId(match["pipeline"], int(match["generation"]), kind, table=table)
        suffix = text[match.end("generation") :]
        numbers = tuple(int(digits) for digits in re.findall("[0-9]+", suffix))
        return TxnId(match["pipeline"], int(match["generation"]), kind, numbers)

    @staticmethod
    def all_of(recorded: Mapping[str, LSN]) -> dict[TxnId, LSN]:
        """Return pgdelta's ids and their versions among all that a log records."""
        found = ((TxnId.parse(text), version) for text, version in recorded.items())
        return {txn: version for txn, version in found if txn is not None}


def is_partial(recorded: Mapping[TxnId, LSN]) -> bool:
    """Return whether a table has only a part of a transaction, or of a copy, given all that it records."""
    return any(
        txn.kind.is_part and offset > recorded.get(txn.offset_id, INVALID) for txn, offset in recorded.items()
    )


def _quoted(part: str) -> str:
    return quote(part, safe="").replace(".", "%2E")


@dataclass(frozen=True, slots=True)
class TableCommit:
    """What a commit records besides its data: a transaction id, its version and metadata.

    With `expected_offset` the commit is refused unless the table records that version before it; 0 is none.
    """

    txn: TxnId
    lsn: LSN
    metadata: Mapping[str, object] = field(default_factory=dict)
    expected_offset: LSN | None = None

    @property
    def user_metadata(self) -> str:
        """The JSON of Delta's commit info."""
        return json.dumps({OURS: 1, "app_id": str(self.txn), "lsn": str(self.lsn), **self.metadata})


@contextmanager
def commit_settings(session: SparkSession, commit: TableCommit) -> Iterator[None]:
    """Let the session's writes record this commit; Delta silently skips a write whose version is recorded."""
    session.conf.set(_SETTINGS[0], str(commit.txn))
    session.conf.set(_SETTINGS[1], str(int(commit.lsn)))
    session.conf.set(_METADATA, escape_variables(commit.user_metadata))
    try:
        yield
    finally:
        for key in (*_SETTINGS, _METADATA):
            session.conf.unset(key)


@contextmanager
def metadata_settings(session: SparkSession, metadata: Mapping[str, object]) -> Iterator[None]:
    """Let every commit of the session record these metadata, and that pgdelta made it."""
    session.conf.set(_METADATA, escape_variables(json.dumps({OURS: 1, **metadata})))
    try:
        yield
    finally:
        session.conf.unset(_METADATA)


def escape_variables(text: str) -> str:
    """Return equal JSON without `$`: Spark replaces `${env:…}` in settings, and names may contain it."""
    return text.replace("$", "\\u0024")
