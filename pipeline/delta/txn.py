"""What a data commit records of itself: who wrote it and up to which LSN it is complete.

Delta keeps it as a `txn` action, application id → version, in the commit of the data, and in the commit info.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from pipeline.protocol.lsn import LSN

_TXN = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class TableCommit:
    """What a data commit records beside its data: who wrote it and up to which LSN it is complete.

    Given `after`, it is refused unless that is what was recorded before it; 0 is that nothing was.
    """

    app_id: str
    lsn: LSN
    metadata: Mapping[str, object] = field(default_factory=dict)
    expected_offset: LSN | None = None

    @property
    def user_metadata(self) -> str:
        """Return the JSON that goes into Delta's commit info."""
        return json.dumps({OURS: 1, "app_id": self.app_id, "lsn": str(self.lsn), **self.metadata})


def without_variables(text: str) -> str:
    """Return JSON that means the same and holds no `$`.

    In the value of a setting, Spark would replace `${env:…}`, which a table may be called, by the driver's
    variable.
    """
    return text.replace("$", "\\u0024")


@contextmanager
def commit_settings(session: SparkSession, commit: TableCommit) -> Iterator[None]:
    """Make every write of the session record this commit; Delta skips a second one to a table in silence."""
    session.conf.set(_TXN[0], commit.app_id)
    session.conf.set(_TXN[1], str(int(commit.lsn)))
    session.conf.set(_METADATA, without_variables(commit.user_metadata))
    try:
        yield
    finally:
        for key in (*_TXN, _METADATA):
            session.conf.unset(key)


OURS = "pgdelta"  # the key that the metadata of our commits have
