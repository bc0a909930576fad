"""Silver is compared with its source under a load: equal rows are never reported as different, and every
injury is found.

Injuries are written to silver under a mark that apply takes for its own: as if a fault of ours had made them.
"""

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from pipeline.delta.commit_files import commit_files
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.errors import LakeError, SourceError
from pipeline.metadata.reconciliations import DIFFERENT, EQUAL, UNPROVEN, Reconciliation
from pipeline.metadata.registry import verified_through
from pipeline.protocol.lsn import LSN
from pipeline.report.status import read_status
from pipeline.silver.read.as_of import as_of
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from pipeline.verify import reconcile
from pipeline.verify.prove import run_prove
from pipeline.verify.reconcile import compare_at_rest, run_reconcile
from pipeline.verify.reconcile_report import Reconciled
from tests.support.injuries import injure
from tests.support.pipelines import MakePipeline, Pipeline, with_writer
from tests.support.running import running_both
from tests.support.servers import Database, MakeServer
from tests.support.threads import in_threads
from tests.support.unseen import unseen_commits

ODD = "Odd/näme %1"
TABLES = (
    """CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10,2), weight float8, day date,
        at timestamptz DEFAULT now(), tags text[], long text)""",
    "ALTER TABLE items ALTER long SET STORAGE EXTERNAL",
    "CREATE TABLE pairs (a text, b date, n bigint, PRIMARY KEY (a, b))",
    "CREATE TABLE bag (n int, v text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    f'CREATE TABLE "{ODD}" (id int PRIMARY KEY, "a b" text)',
)
QUIET = 1000  # rows beyond are not the load's
FILL = (
    "INSERT INTO items SELECT i, 'item ' || i, i / 7.0, i / 7.0::float8, date '2000-01-01' + i, now(),"
    " ARRAY['a', 'b,' || i], repeat('x', 3000) || i FROM generate_series(1, 1500) i",
    "INSERT INTO pairs SELECT 'p' || i, date '2000-01-01' + i, i FROM generate_series(1, 1500) i",
    "INSERT INTO bag SELECT i % 400, 'v' || i % 3 FROM generate_series(1, 1500) i",
    f"""INSERT INTO "{ODD}" SELECT i, 'ü' || i FROM generate_series(1, 20) i""",
)


@dataclass
class Load:
    """Transactions at the source until it is stopped."""

    database: Database
    rng: Random
    columns: int = 0
    transactions: int = 0

    def run(self, stop: threading.Event) -> None:
        with self.database.connect() as source:
            while not stop.wait(0.05):
                with suppress(psycopg.errors.UniqueViolation), source.transaction():
                    for _ in range(self.rng.randint(1, 4)):
                        source.execute(self.statement().encode())
                self.transactions += 1

    def statement(self) -> str:
        """Return a statement that leaves the quiet rows alone; seldom one that adds a column or truncates."""
        rng = self.rng
        i, j = rng.randrange(1, QUIET), rng.randrange(10_000, 20_000)
        if rng.random() < 0.01 and self.columns < 2:
            self.columns += 1
            return f"ALTER TABLE items ADD COLUMN extra{self.columns} int DEFAULT {self.columns}"
        statements = (
            f"UPDATE items SET price = price + 1, weight = random() WHERE id = {i}",
            f"UPDATE items SET long = long || 'y', day = NULL WHERE id = {i}",
            f"UPDATE items SET id = {j} WHERE id = {i} AND NOT EXISTS (SELECT FROM items WHERE id = {j})",
            f"DELETE FROM items WHERE id = {i}",
            f"INSERT INTO items (id, name, tags) VALUES ({i}, E'it''s \\t{j}', '{{NULL,\"\"}}')"
            " ON CONFLICT (id) DO UPDATE SET name = excluded.name",
            f"UPDATE pairs SET a = 'q{j}', n = n + 1 WHERE a = 'p{i}'",
            f"INSERT INTO pairs VALUES ('p{i}', '2020-01-01', {j}) ON CONFLICT DO NOTHING",
            f"INSERT INTO bag VALUES ({i % 400}, NULL), ({i % 400}, NULL)",
            f"DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE n = {i % 390})",
            f"UPDATE bag SET v = 'w' WHERE n = {i % 390}",
            f"""UPDATE "{ODD}" SET "a b" = '{j}' WHERE id = {i % 20 + 1}""",
        )
        return rng.choice(statements)


@pytest.fixture
def shop(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose tables were copied."""
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.catch_up(*TABLES, *FILL)
    return pipeline


def compared(pipeline: Pipeline, *globs: str, **options: Any) -> dict[str, Reconciliation]:
    """Return the verdicts of a reconciliation by table."""
    found = run_reconcile(pipeline.config, globs or None, **options)
    assert found.exit_code(strict=False) == int(any(v.verdict != EQUAL for v in found.verdicts))
    return {verdict.name[1]: verdict for verdict in found.verdicts}


def differences(pipeline: Pipeline, table: str) -> list[tuple[str, str | None, tuple[str, ...], int]]:
    rows = pipeline.frame("_pgdelta", "differences").where(f"table_name = '{table}'").collect()
    return [(row.kind, row.key, tuple(row["columns"]), row.copies) for row in rows]


@pytest.mark.promise("reconcile")
@pytest.mark.slow
def test_equal_tables_are_called_equal_while_the_load_continues(shop: Pipeline) -> None:
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    pending = 0
    load = Load(shop.database, Random(seed))
    with in_threads(load.run), running_both(shop.config):
        for _ in range(3):
            before = load.transactions
            found = compared(shop)
            assert {name: v.verdict for name, v in found.items()} == dict.fromkeys(
                ("items", "pairs", "bag", ODD), EQUAL
            ), found
            assert load.transactions > before
            pending += sum(verdict.pending for verdict in found.values())
    assert pending, "no change came between version and snapshot"
    shop.catch_up()
    last = compared(shop, runs=True)
    assert {v.verdict for v in last.values()} == {EQUAL}
    status = read_status(shop.config)
    verified = {table.name[1]: table.verified and table.verified.lsn for table in status.tables}
    assert verified == {name: verdict.lsn for name, verdict in last.items()}
    shop.assert_equal("items", "pairs", "bag")


@pytest.mark.spark
def test_tables_at_rest_are_compared_as_they_are(shop: Pipeline) -> None:
    names = [TableName("public", name) for name in ("items", "pairs", "bag", ODD, "nowhere")]
    lake = Lake(shop.root, shop.spark)
    verdicts = compare_at_rest(shop.config, lake, names)
    assert [verdict.name for verdict in verdicts] == names[:4]
    assert {(verdict.verdict, bool(verdict.left_out)) for verdict in verdicts} == {(EQUAL, False)}
    injure(shop, "items", "UPDATE {} SET price = price + 0.01 WHERE id = 1001")
    injure(shop, "items", "DELETE FROM {} WHERE id = 1004")
    injure(shop, "bag", "INSERT INTO {} (n, v) VALUES (395, 'v0')")
    writers: tuple[WriterSetting, ...] = ("auto", "spark")
    for config in (with_writer(shop, writer).config for writer in writers):
        items, pairs, bag, _ = compare_at_rest(config, lake, names)
        assert (items.verdict, items.columns) == (DIFFERENT, ("price",))
        assert (items.missing, items.surplus, items.changed) == (1, 0, 1)
        assert pairs.verdict == EQUAL
        assert (bag.surplus, bag.silver_rows) == (1, bag.source_rows + 1)


@pytest.mark.spark
@pytest.mark.promise("reconcile")
@pytest.mark.slow
def test_every_injury_is_found_while_the_load_continues(shop: Pipeline) -> None:
    injure(shop, "items", "UPDATE {} SET price = price + 0.01 WHERE id = 1001")
    injure(shop, "items", "UPDATE {} SET tags = array('a', 'b', '1002') WHERE id = 1002")
    injure(shop, "items", "UPDATE {} SET day = NULL, long = NULL WHERE id = 1003")
    injure(shop, "items", "DELETE FROM {} WHERE id = 1004")
    injure(shop, "items", "UPDATE {} SET at = at + INTERVAL 1 MICROSECOND WHERE id = 1005")
    injure(shop, "items", "UPDATE {} SET name = concat(name, ' ') WHERE id = 1006")
    injure(shop, "pairs", "INSERT INTO {} SELECT * FROM {0} WHERE a = 'p1001'".replace("{}", "{0}"))
    injure(shop, "pairs", "INSERT INTO {} (a, b, n) VALUES ('none', DATE '2000-01-01', 1)")
    injure(shop, "bag", "INSERT INTO {} (n, v) VALUES (395, 'v0')")
    injure(shop, "bag", "UPDATE {} SET v = NULL WHERE n = 396 AND v = 'v1'")
    whole = shop.source.execute("SELECT count(*) FROM bag WHERE n = 396 AND v = 'v1'").fetchone()
    assert whole is not None
    with in_threads(Load(shop.database, Random(1)).run), running_both(shop.config):
        found = compared(shop)
    assert found.pop(ODD).verdict == EQUAL
    assert {name: verdict.verdict for name, verdict in found.items()} == dict.fromkeys(found, DIFFERENT)
    assert set(differences(shop, "items")) == {
        ("changed", '{"id": "1001"}', ("price",), 1),
        ("changed", '{"id": "1002"}', ("tags",), 1),
        ("changed", '{"id": "1003"}', ("day", "long"), 1),
        ("missing", '{"id": "1004"}', (), 1),
        ("changed", '{"id": "1005"}', ("at",), 1),
        ("changed", '{"id": "1006"}', ("name",), 1),
    }
    assert set(differences(shop, "pairs")) == {
        ("surplus", '{"a": "p1001", "b": "2002-09-28"}', (), 1),
        ("surplus", '{"a": "none", "b": "2000-01-01"}', (), 1),
    }
    assert sorted(row[0:1] + row[3:] for row in differences(shop, "bag")) == [
        ("missing", whole[0]),
        ("surplus", 1),
        ("surplus", whole[0]),
    ]
    assert verified_through(Lake(shop.root, shop.spark)).keys() == {("public", ODD)}
    repaired = run_reconcile(shop.config, runs=True, repairs=True)
    assert repaired.repairs == {
        ("public", "items"): "A partial resync of 6 keys is requested.",
        ("public", "pairs"): "A partial resync of 2 keys is requested.",
        ("public", "bag"): "A resync of the whole table is requested.",
    }
    assert {verdict.verdict for verdict in compared(shop, runs=True).values()} == {EQUAL}
    shop.assert_equal("items", "pairs", "bag")
    silver = as_of(shop.session, shop.root)
    assert {silver.table("public", name).refusal for name in ("items", "pairs")} == {None}


@pytest.mark.spark
@pytest.mark.slow
def test_two_reconciliations_at_once_leave_each_others_clones_alone(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(create_publication="all")
    pipeline.catch_up("CREATE TABLE items (id int PRIMARY KEY, name text)")
    pipeline.catch_up("INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 50) i")
    pipeline.run("UPDATE items SET name = 'new' WHERE id < 9")  # is not in silver yet: a clone will have it
    pipeline.ingest()
    # as the next apply does on an object store, after the manifest
    claim = TableCommit(TxnId(pipeline.config.pipeline, kind=TxnKind.FENCE), LSN(1))
    commit_files(Lake(pipeline.root).table("silver", "public", "items"), [], claim)
    left = pipeline.path("_pgdelta", "reconcile", f"{10**9}-{'0' * 32}", "public", "items")
    left.mkdir(parents=True)
    find: Any = getattr(reconcile, "find_differences")  # noqa: B009
    inner = []

    def compare_another_first(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(reconcile, "find_differences", find)
        inner.append(compared(pipeline, runs=True)["items"].verdict)
        return find(*arguments, **options)

    monkeypatch.setattr(reconcile, "find_differences", compare_another_first)
    assert compared(pipeline, runs=True)["items"].verdict == EQUAL
    assert inner == [EQUAL]
    assert list(pipeline.path("_pgdelta", "reconcile").iterdir()) == [], "nor does a dead run leave one"


@pytest.mark.spark
@pytest.mark.slow
def test_what_silver_cannot_hold_is_no_difference(make_pipeline: MakePipeline) -> None:
    rule = "public.*"
    pipeline = make_pipeline(rule, copy="initial", create_publication="all")
    tables = tuple(
        replace(
            r, misfits={"kept": "text", "near": "clamp"}, types={"free": "DECIMAL(6,1)", "json": "VARIANT"}
        )
        for r in pipeline.config.tables
    )
    pipeline = replace(pipeline, config=replace(pipeline.config, tables=tables))
    pipeline.catch_up(
        """CREATE TABLE t (id int PRIMARY KEY, gone date, kept timestamp, near timestamptz, free numeric,
            json jsonb, days date[], days2 int[])""",
        """INSERT INTO t VALUES
            (1, 'infinity', '-infinity', 'infinity', 1.25, '{"a": 1}', '{infinity,2024-01-01}', '{{1},{2}}'),
            (2, '2024-01-01', '2024-01-01', '0044-03-15 BC', 1e9, '1', NULL, '{}'),
            (3, '0044-03-15 BC', NULL, NULL, 'NaN', NULL, '{{2024-01-01}}', '[3:3]={1}')""",
    )
    found = compared(pipeline, runs=True)["t"]
    assert found.verdict == EQUAL, found
    assert dict(found.misfits) == {"gone": 2, "kept": 1, "free": 3, "days": 1, "days2": 2}
    assert found.left_out.keys() == {"json"}
    # a text that is lost beside its column, and a nearest value that is another
    injure(pipeline, "t", "UPDATE {} SET kept__text = NULL WHERE id = 1")
    injure(pipeline, "t", "UPDATE {} SET near = TIMESTAMP '9998-12-31 00:00:00' WHERE id = 1")
    assert compared(pipeline, runs=True)["t"].columns == ("kept__text", "near")


@pytest.mark.spark
@pytest.mark.promise("reconcile")
@pytest.mark.slow
def test_rows_of_an_invisible_commit_are_left_to_the_next_snapshot(
    make_server: MakeServer, make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_ATTEMPTS", 2)
    server = make_server()
    database = Database(server, "postgres", server.conninfo_of("postgres"))
    pipeline = make_pipeline(database=database, create_publication="all")
    pipeline.ingest("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.catch_up("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 20) i")

    with unseen_commits(database, "UPDATE t SET v = 'late' WHERE id = 1"):
        pipeline.ingest("SET synchronous_commit = off", "INSERT INTO t VALUES (100, 'seen')")
        changes = pipeline.frame("bronze", "changes").where("op = 'U'").count()
        assert changes == 1, "the commit that waits is decoded"
        found = compared(pipeline, runs=True)["t"]
        assert (found.verdict, found.source_rows, found.pending) == (EQUAL, 21, 1)
        pipeline.apply()
        found = compared(pipeline, runs=True)["t"]
        assert found.verdict == UNPROVEN
        assert found.sentence
        assert "not visible" in found.sentence
    found = compared(pipeline, runs=True)["t"]
    assert found.verdict == EQUAL


@pytest.mark.slow
def test_what_is_not_known_is_not_proven(shop: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_ATTEMPTS", 2)
    shop.run("INSERT INTO bag VALUES (1, 'not captured')")
    with pytest.raises(LakeError, match="--run"):
        compared(shop, "public.bag", wait=0)
    other = replace(shop, config=replace(shop.config, source=replace(shop.config.source, conninfo="port=1")))
    with pytest.raises(SourceError):
        compared(other)
    shop.run("CREATE TABLE late (id int PRIMARY KEY)")
    late = compared(shop, "public.late", runs=True)["late"]
    assert late.verdict == UNPROVEN
    assert late.sentence
    table = compared(shop, "public.pairs", runs=True)
    assert table.keys() == {"pairs"}
    assert Reconciled("shop", "1", tuple(table.values())).as_json()["ok"]


@pytest.mark.promise("reconcile")
def test_a_held_table_is_not_waited_for_and_says_why_it_is_held(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, '1')")
    pipeline.ingest("ALTER TABLE t ALTER v TYPE int USING v::int", "UPDATE t SET v = 2")
    held = pipeline.apply().tables[TableName("public", "t")].held
    pauses: list[float] = []
    monkeypatch.setattr(reconcile, "_PAUSE", 0)
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", lambda seconds: pauses.append(seconds))
    found = compared(pipeline, runs=True, stop=stop)["t"]
    assert (found.verdict, found.sentence, pauses) == (UNPROVEN, held, [])
    (shown,) = read_status(pipeline.config, is_offline=True).tables
    assert (shown.state, shown.sentence) == ("held", held)


@pytest.mark.promise("reconcile")
def test_a_table_whose_first_write_failed_says_why(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.ingest(
        "CREATE TABLE k (n int, d date, PRIMARY KEY (n, d))",
        "INSERT INTO k VALUES (1, 'infinity'), (2, '2020-01-01')",
    )
    pipeline.apply(records_status=True)
    [table] = read_status(pipeline.config).tables
    assert table.state == "failed"
    assert str(table.sentence).startswith(
        "Table public.k: 1 row has a key that its silver type cannot hold. Set tables[].types of d to STRING,"
    )
    found = compared(pipeline, runs=True)["k"]
    assert (found.verdict, found.sentence) == (UNPROVEN, table.sentence)
    [proved] = run_prove(pipeline.config, wait=5, runs=True).verdicts
    assert (proved.verdict, proved.sentence) == (UNPROVEN, table.sentence)


@pytest.mark.promise("reconcile")
def test_a_table_that_forgets_its_offset_says_why(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    expires = {"delta.setTransactionRetentionDuration": "interval 0 days"}
    DeltaTable(str(pipeline.path("silver", "public", "t"))).alter.set_table_properties(expires)
    pipeline.catch_up("INSERT INTO t VALUES (2)")
    found = compared(pipeline, runs=True)["t"]
    assert found.verdict == UNPROVEN
    assert "records no offset. Unset its property delta.setTransactionRetention" in str(found.sentence)


@pytest.mark.promise("reconcile")
def test_a_table_of_as_many_columns_as_postgres_has(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    others = ", ".join(f"c{number} int" for number in range(1599))
    pipeline.catch_up(f"CREATE TABLE t (id int PRIMARY KEY, {others})", "INSERT INTO t VALUES (1, 2)")
    found = compared(pipeline, runs=True)["t"]
    assert (found.verdict, found.sentence, found.silver_rows) == (EQUAL, None, 1)


@pytest.mark.promise("any schema change")
def test_a_generated_column_that_is_not_published_any_more_is_named(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(copy="initial", create_publication="all")
    publication = pipeline.config.source.publication
    pipeline.ingest(f"ALTER PUBLICATION {publication} SET (publish_generated_columns = stored)")
    twice = "int GENERATED ALWAYS AS (id * 2)"
    pipeline.catch_up(f"CREATE TABLE t (id int PRIMARY KEY, v {twice} VIRTUAL, s {twice} STORED)")
    pipeline.catch_up("INSERT INTO t VALUES (1)")
    pipeline.catch_up(f"ALTER PUBLICATION {publication} SET (publish_generated_columns = none)")
    pipeline.catch_up("INSERT INTO t VALUES (2)")
    found = compared(pipeline, runs=True)["t"]
    assert found.verdict == EQUAL
    assert found.left_out == {
        "v": "it is generated and not published, so silver does not have it",
        "s": "it is generated and not published any more, so silver keeps it as it was",
    }
