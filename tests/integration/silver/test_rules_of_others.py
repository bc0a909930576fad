"""What another writer sets on a silver table stops that table alone, with what was set and the remedy."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeline.delta.definition import Definition
from pipeline.delta.native_commit import Operation, commit_version
from pipeline.delta.table import LakeTable
from tests.support.lockstep import STOPPED, Group, Lane, Steps, lockstep

pytestmark = pytest.mark.postgres
GROUP = Group()

Setting = Callable[[Definition], Definition]


def required(column: str, *, is_required: bool = True) -> Setting:
    """Return the change that makes a column NOT NULL, or ends that."""

    def change(definition: Definition) -> Definition:
        fields = definition.fields
        return definition.with_fields(
            replace(each, nullable=not is_required) if each.name == column else each for each in fields
        )

    return change


def protocol(**changes: Any) -> Setting:
    """Return the change of the protocol's action."""
    return lambda definition: replace(definition, protocol={**definition.protocol, **changes})


FEATURE = {"minReaderVersion": 3, "minWriterVersion": 7}
# table → what another writer sets, what the table then says, how that is taken back
SETTINGS: dict[str, tuple[Setting, str, Setting]] = {
    "required": (
        required("v"),
        "Rows of the source have NULL, or no value, in column v of the silver table, which another writer "
        "made NOT NULL. Run ALTER TABLE … ALTER COLUMN … DROP NOT NULL, then run again.",
        required("v", is_required=False),
    ),
    "newer": (
        protocol(minReaderVersion=4, minWriterVersion=8),
        " has version (4, 8) of Delta's protocol (reader, writer), and pgdelta supports up to (3, 7). "
        "Another writer raised it: restore the table.",
        protocol(minReaderVersion=1, minWriterVersion=2),
    ),
    "managed": (
        protocol(**FEATURE, readerFeatures=["catalogManaged"], writerFeatures=["catalogManaged"]),
        " has the table feature catalogManaged, which pgdelta does not support. Run ALTER TABLE … DROP "
        "FEATURE.",
        protocol(**FEATURE, readerFeatures=[], writerFeatures=[]),
    ),
}


def commit(table: LakeTable, version: int, before: Definition, after: Definition) -> None:
    commit_version(table.folder, version, after.actions(before), Operation("SET TBLPROPERTIES"))


@lockstep()
def test_what_another_writer_sets_is_named_with_its_remedy(lane: Lane) -> Steps:
    tables = [*SETTINGS, "damaged", "lost", "plain"]
    for table in tables:
        lane.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')",
        )
    yield
    before = {table: Definition.of(lane.silver(table).snapshot()) for table in SETTINGS}
    versions = {table: lane.silver(table).version() for table in tables}
    after = {}
    for table, (setting, _, _) in SETTINGS.items():
        after[table] = setting(before[table])
        commit(lane.silver(table), versions[table], before[table], after[table])
    damaged = lane.silver("damaged").folder / "_delta_log" / f"{versions['damaged'] + 1:020}.json"
    damaged.write_text('{"commitInfo":')
    lost = lane.silver("lost").folder / "_delta_log"
    shutil.rmtree(lost)
    lost.mkdir()
    (lost / f"{1:020}.json").write_text("{}")
    for table in tables:
        lane.run(f"UPDATE {table} SET v = NULL WHERE id = 1", f"INSERT INTO {table} VALUES (3, 'c')")
    yield STOPPED
    for table, (_, sentence, _) in SETTINGS.items():
        assert (lane.state(table).failure or "").endswith(sentence), table
    sentence = "is damaged. Restore its file; if it is the newest, and no writer runs, remove it"
    assert sentence in (lane.state("damaged").failure or "")
    remedy = f"{lane.silver('lost').path} away, and the table is rebuilt from bronze."
    assert (lane.state("lost").failure or "").endswith(remedy)
    lane.assert_equal("plain")
    for table, (_, _, reverse) in SETTINGS.items():
        commit(lane.silver(table), versions[table] + 1, after[table], reverse(after[table]))
    damaged.unlink()
    shutil.rmtree(lane.silver("lost").folder)
    yield
    lane.assert_equal(*tables)
