"""What `pgdelta audit` finds in a lake: nothing if it is whole, else where it is not."""

from dataclasses import replace

import pytest

from pipeline.bronze.log import Bronze
from pipeline.config.config import Protocol
from pipeline.delta.commit_files import commit_files
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit
from pipeline.errors import LakeError
from pipeline.protocol.lsn import LSN
from pipeline.verify.audit import Audit, run_audit
from pipeline.verify.commit_chain import FOREIGN, GAP, ROWS
from tests.support.pipelines import MakePipeline, Pipeline


def audit_of(pipeline: Pipeline) -> Audit:
    return run_audit(pipeline.config)


@pytest.mark.spark
@pytest.mark.promise("the audit finds every hole")
def test_a_chain_is_whole_until_it_is_broken(pipeline: Pipeline) -> None:
    with pytest.raises(LakeError, match=r"has no changes yet\. Run pgdelta ingest first"):
        audit_of(pipeline)
    pipeline.ingest()
    begin = pipeline.confirmed_lsn()
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    for n in range(2):
        pipeline.run(f"INSERT INTO t SELECT {n} * 100 + i FROM generate_series(1, 50) i")
        pipeline.transact(f"UPDATE t SET id = id + 10 WHERE id = {n} * 100 + 50", "TRUNCATE u, t")
        pipeline.ingest("SELECT pg_logical_emit_message(true, 'beat', 'not counted')")
    whole = audit_of(pipeline)
    assert whole.findings == ()
    assert whole.exit_code(strict=True) == 0
    data = whole.as_json()
    assert data["whole"]
    assert data["from_the_beginning"]
    assert LSN.parse(data["from_lsn"]) <= begin
    assert LSN.parse(data["to_lsn"]) == pipeline.confirmed_lsn()
    assert (data["changes"], data["rows"]["changes"]) == (106, 106)  # 50 I, 1 U and 2 T, twice
    [segment] = data["segments"]
    assert (segment["slot"], segment["timeline"]) == (pipeline.config.source.slot, 1)

    # a commit that does not go on where the last one ended, as a restored slot would have it
    bronze = Bronze(Lake(pipeline.root, pipeline.spark), pipeline.config.pipeline)
    facts, captured = bronze.metadata(), LSN.parse(data["to_lsn"])
    start, end = LSN(captured + 0x100), LSN(captured + 0x200)
    range_of = {"from_lsn": str(start), "to_lsn": str(end), "changes": 0}
    commit = TableCommit(bronze.txn, end, {**facts, **range_of, "lsn": str(end)})
    commit_files(bronze.changes, [], commit)
    broken = audit_of(pipeline)
    [gap] = broken.findings
    assert (gap.kind, gap.start, gap.end) == (GAP, captured, start)
    assert gap.versions[1] == bronze.changes.version()
    assert broken.exit_code(strict=False) == 1
    assert any(line.startswith("gap: Changes committed from") for line in broken.lines())

    # and rows that are deleted
    pipeline.session.sql(f"DELETE FROM {bronze.changes.identifier} WHERE op = 'U'")
    findings = audit_of(pipeline).findings
    assert sorted({finding.kind for finding in findings}) == [FOREIGN, GAP, ROWS]
    versions = {finding.versions[0] for finding in findings if finding.kind == ROWS}
    assert versions <= {link.version for link in whole.chain.links if link.changes}


@pytest.mark.spark
@pytest.mark.promise("the audit finds every hole")
@pytest.mark.slow
def test_copies_prepared_transactions_and_a_crossed_gap(make_pipeline: MakePipeline) -> None:
    protocol = Protocol(two_phase=True, streaming="on", written=frozenset({"two_phase", "streaming"}))
    pipeline = make_pipeline(create_publication="all", copy="initial", protocol=protocol)
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'old' FROM generate_series(1, 1000) i",
    )
    pipeline.prepare("one", "INSERT INTO t SELECT i, 'one' FROM generate_series(2001, 2020) i")
    pipeline.ingest("INSERT INTO t VALUES (3001, 'new')")
    pipeline.prepare("two", "INSERT INTO t VALUES (4001, 'two')")
    pipeline.run("COMMIT PREPARED 'one'", "ROLLBACK PREPARED 'two'")
    big = "INSERT INTO t SELECT i, repeat('x', 2000) FROM generate_series(10001, 14000) i"
    pipeline.catch_up(f"ALTER DATABASE {pipeline.database.name} SET logical_decoding_work_mem = '64kB'", big)
    whole = audit_of(pipeline)
    assert whole.findings == ()
    assert (whole.counted, whole.prepared_rows, whole.copies) == (4001, 20, 1)
    assert (whole.chain.copy_commits, whole.chain.prepared_commits) == (1, 1)
    data = whole.as_json()
    assert data["transactions"] >= 3

    # a lost slot that the configuration lets a run cross
    pipeline.drop_slot()
    pipeline.run("INSERT INTO t VALUES (5001, 'of the gap')")
    source = replace(pipeline.config.source, lost_slot="resync")
    pipeline = replace(pipeline, config=replace(pipeline.config, source=source))
    pipeline.catch_up()
    pipeline.catch_up("INSERT INTO t VALUES (5002, 'after it')")
    crossed = audit_of(pipeline)
    assert crossed.findings == ()
    assert (crossed.exit_code(strict=False), crossed.exit_code(strict=True)) == (0, 1)
    [gap] = crossed.chain.crossed_gaps
    assert (gap.start, gap.end > gap.start) == (LSN.parse(data["to_lsn"]), True)
    assert any(line.startswith(f"gap from {gap.start} to {gap.end}, crossed at") for line in crossed.lines())
    assert (crossed.counted, crossed.copies) == (4002, 2)
