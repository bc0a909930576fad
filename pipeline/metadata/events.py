"""`_pgdelta/events`: what happened to tables that a person may have to know."""

from dataclasses import dataclass

from pipeline.protocol.lsn import LSN

EVENTS = (
    "schema_name STRING, table_name STRING, lsn BIGINT, kind STRING, sentence STRING, recorded_at TIMESTAMP"
)


ONLY_A_COPY_HELPS = ("resync", "diverged")


@dataclass(frozen=True, slots=True)
class Event:
    """What silver could not follow exactly, or how its shape changed."""

    schema_name: str
    table_name: str
    lsn: LSN
    kind: str  # evolved, refused, held, resync, diverged
    sentence: str
