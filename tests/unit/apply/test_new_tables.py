"""New tables of a batch are created first, and registered by one commit before their rows are written."""

from pathlib import Path

import pytest

from pipeline.apply.applier import Applier
from pipeline.protocol.lsn import LSN
from pipeline.silver.write.batch_writer import BatchWriter
from tests.support.native_lakes import COPIED_AT, NativeLake
from tests.support.pipelines import succeeded

COUNT = 20


class CopiedLake(NativeLake):
    """A lake whose tables are copied, and not in silver yet."""

    def _apply(self) -> None:
        self.land(LSN(COPIED_AT + 8), [])

    def registered(self) -> dict[str, bool]:
        """Return the tables that are registered, and whether each has rows."""
        tables = Applier(None, self.config).records.tables.read()
        return {name.table: not self.lake.table_at(table.path).is_empty() for name, table in tables.items()}

    def commits(self) -> int:
        """Return the version of the registry, which has 0 once it is created."""
        return self.records.tables._table.version()


@pytest.fixture
def lake(tmp_path: Path) -> CopiedLake:
    return CopiedLake(tmp_path / "lake", COUNT)


def test_one_commit_registers_all_new_tables(lake: CopiedLake) -> None:
    succeeded(Applier(None, lake.config).apply_pending())
    assert lake.registered() == dict.fromkeys((name.table for name in lake.names), True)
    assert lake.commits() == 1
    assert len(lake.records.events.history()) == COUNT
    assert lake.records.events._table.version() == 1
    columns = next(iter(Applier(None, lake.config).records.tables.read().values())).columns
    assert [(column.name, column.is_key) for column in columns] == [("id", True), ("name", False)]


def test_a_run_that_ends_before_the_rows_is_continued(
    lake: CopiedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BatchWriter, "_write", fail)
        with pytest.raises(KeyboardInterrupt):
            Applier(None, lake.config).apply_pending()
    assert lake.registered() == dict.fromkeys((name.table for name in lake.names), False)
    assert not lake.records.events.history(), "nothing starts before its rows"
    succeeded(Applier(None, lake.config).apply_pending())
    assert all(lake.registered().values())
    assert len(lake.records.events.history()) == COUNT


def test_a_table_that_cannot_be_created_stops_no_other(lake: CopiedLake) -> None:
    bad = lake.root / "silver" / "public" / lake.names[3].table
    bad.parent.mkdir(parents=True)
    bad.write_text("a file in place of the folder")
    summary = Applier(None, lake.config).apply_pending()
    failed = {name.table for name, state in summary.tables.items() if state.failure}
    assert failed == {lake.names[3].table}
    assert lake.registered() == {name.table: True for name in lake.names if name.table not in failed}
