"""A pipeline with one published table, for tests of what becomes of tables."""

import pytest

from pipeline.table_copy import coordinator
from tests.support.pipelines import MakePipeline, Pipeline

TABLE = "CREATE TABLE {0} (id int PRIMARY KEY, v text)"
FILL = "INSERT INTO {0} SELECT i, 'v' || i FROM generate_series({1}, {2}) i"


@pytest.fixture
def life(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline that copies, whose publication has one table, a, and is altered by tests only."""
    pipeline = make_pipeline(copy="initial", create_publication="configured")
    pipeline.catch_up(TABLE.format("a"), FILL.format("a", 1, 50))
    pipeline.run(f"COMMENT ON PUBLICATION {pipeline.config.source.publication} IS NULL")
    return pipeline


def forbid_copies(patch: pytest.MonkeyPatch) -> None:
    """Let no copy begin, as if the source could not be reached for it."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("no copy today")

    patch.setattr(coordinator, "SnapshotKeeper", fail)
