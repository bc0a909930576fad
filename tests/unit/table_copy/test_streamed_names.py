"""Which tables a session of the stream sends under another name than the source has for them."""

from __future__ import annotations

import threading

from pipeline.bronze.relation_versions import relation_version
from pipeline.postgres.published_tables import Membership
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Relation
from pipeline.table_copy.streamed_names import MOST_SESSIONS, StreamedNames
from pipeline.table_name import TableName

PUBLISHED = {TableName("s2", "t"): Membership(500, 7), TableName("s2", "u"): Membership(501, 8)}


def described(*schemas: str) -> StreamedNames:
    names = StreamedNames()
    for schema in schemas:
        names.describe(relation_version(Relation(500, schema, "t", "d", ()), None, LSN(1)))
    return names


def test_a_table_that_was_described_under_another_name_goes_astray_until_it_is_described_anew() -> None:
    names = described("s")
    assert names.renamed(PUBLISHED) == {TableName("s2", "t"): TableName("s", "t")}
    names.forget()
    assert names.renamed(PUBLISHED) == {}
    assert described("s", "s2").renamed(PUBLISHED) == {}


def test_another_session_is_due_once_bronze_is_beyond_the_renaming() -> None:
    names = described("s")
    assert not names.is_due(LSN(100))
    stop, begun = threading.Event(), []
    asking = threading.Thread(target=lambda: begun.append(names.request_session(LSN(50), stop)))
    asking.start()
    while not names.is_due(LSN(50)):
        pass
    assert not names.is_due(LSN(49))
    names.renewed()
    asking.join()
    assert begun == [True]
    assert names.renamed(PUBLISHED) == {}
    stop.set()
    assert not names.request_session(LSN(60), stop)


def test_a_name_that_stays_another_does_not_renew_sessions_for_ever() -> None:
    names = described("s")
    asked = [
        names.may_request_session(500, TableName("s2", "t"), TableName("s", "t"))
        for _ in range(MOST_SESSIONS + 1)
    ]
    assert asked == [True] * MOST_SESSIONS + [False]
    assert names.may_request_session(500, TableName("s3", "t"), TableName("s", "t"))
