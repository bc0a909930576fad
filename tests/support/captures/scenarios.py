"""What the captures hold: SQL that was run on real servers, and what its messages mean, written by hand.

`capture.py` runs each scenario and stores the bytes; the tests decode those bytes and compare them with
`meaning`, one line a message, in the words of `tests/support/protocol/meaning.py`. A transaction is one
string; with `since`, a scenario runs on that major and later, and `options` are pgoutput's. Those of
protocol 2 and later are in `streams` and `prepared`.
"""

from tests.support.captures.prepared import PREPARED
from tests.support.captures.scenario import Scenario
from tests.support.captures.streams import STREAMED

SCENARIOS = (
    Scenario(
        "insert",
        ("CREATE TABLE t (id int PRIMARY KEY, name text, price numeric(10,2), ok bool, code varchar(5))",),
        (
            "INSERT INTO t VALUES (1, 'Zoë 💡', 12.50, true, NULL), (-2, '', NULL, false, 'ab')",
            "INSERT INTO t (id) VALUES (3)",
        ),
        (
            "Begin",
            "Relation public.t d (id int4 *, name text, price numeric 655366, ok bool, code varchar 9)",
            "Insert public.t ('1', 'Zoë 💡', '12.50', 't', NULL)",
            "Insert public.t ('-2', '', NULL, 'f', 'ab')",
            "Commit",
            "Begin",
            "Insert public.t ('3', NULL, NULL, NULL, NULL)",
            "Commit",
        ),
    ),
    Scenario(
        "identity default",
        ("CREATE TABLE t (a int, b int, v text, PRIMARY KEY (b))", "INSERT INTO t VALUES (1, 2, 'old')"),
        (
            "UPDATE t SET v = 'new'; UPDATE t SET v = v",
            "UPDATE t SET b = 3, v = NULL",
            "DELETE FROM t",
        ),
        (
            "Begin",
            "Relation public.t d (a int4, b int4 *, v text)",
            "Update public.t → ('1', '2', 'new')",
            "Update public.t → ('1', '2', 'new')",
            "Commit",
            "Begin",
            "Update public.t K (NULL, '2', NULL) → ('1', '3', NULL)",
            "Commit",
            "Begin",
            "Delete public.t K (NULL, '3', NULL)",
            "Commit",
        ),
    ),
    Scenario(
        "identity full",
        (
            "CREATE TABLE t (id int PRIMARY KEY, v text, big text)",
            "ALTER TABLE t REPLICA IDENTITY FULL, ALTER big SET STORAGE EXTERNAL",
            "INSERT INTO t VALUES (1, NULL, repeat('x', 2500))",
        ),
        ("UPDATE t SET v = 'a'", "DELETE FROM t"),
        (
            "Begin",
            "Relation public.t f (id int4 *, v text *, big text *)",
            "Update public.t O ('1', NULL, 'x'·2500) → ('1', 'a', unchanged TOAST)",
            "Commit",
            "Begin",
            "Delete public.t O ('1', 'a', 'x'·2500)",
            "Commit",
        ),
    ),
    Scenario(
        "identity index",
        (
            "CREATE TABLE t (id int PRIMARY KEY, k text NOT NULL, v int)",
            "CREATE UNIQUE INDEX t_k ON t (k)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX t_k",
            "INSERT INTO t VALUES (1, 'one', 1)",
        ),
        ("UPDATE t SET id = 5", "UPDATE t SET k = 'two'; DELETE FROM t"),
        (
            "Begin",
            "Relation public.t i (id int4, k text *, v int4)",
            "Update public.t → ('5', 'one', '1')",
            "Commit",
            "Begin",
            "Update public.t K (NULL, 'one', NULL) → ('5', 'two', '1')",
            "Delete public.t K (NULL, 'two', NULL)",
            "Commit",
        ),
    ),
    Scenario(
        "identity nothing and tables without a key",
        (
            "CREATE TABLE t (id int PRIMARY KEY)",
            "ALTER TABLE t REPLICA IDENTITY NOTHING",
            "CREATE TABLE keyless (v int)",
            "CREATE TABLE nothing ()",
        ),
        ("INSERT INTO t VALUES (1); INSERT INTO keyless VALUES (2); INSERT INTO nothing DEFAULT VALUES",),
        (
            "Begin",
            "Relation public.t n (id int4)",
            "Insert public.t ('1')",
            "Relation public.keyless d (v int4)",
            "Insert public.keyless ('2')",
            "Relation public.nothing d ()",
            "Insert public.nothing ()",
            "Commit",
        ),
    ),
    Scenario(
        "values stored out of line",
        (
            "CREATE TABLE t (k text PRIMARY KEY, v text, n int)",
            "ALTER TABLE t ALTER k SET STORAGE EXTERNAL, ALTER v SET STORAGE EXTERNAL",
            "INSERT INTO t VALUES (repeat('k', 2200), repeat('v', 2400), 1)",
        ),
        ("UPDATE t SET n = 2", "UPDATE t SET k = 'short', v = NULL"),
        (
            "Begin",
            "Relation public.t d (k text *, v text, n int4)",
            "Update public.t K ('k'·2200, NULL, NULL) → (unchanged TOAST, unchanged TOAST, '2')",
            "Commit",
            "Begin",
            "Update public.t K ('k'·2200, NULL, NULL) → ('short', NULL, '2')",
            "Commit",
        ),
    ),
    Scenario(
        "truncate",
        ("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY REFERENCES a)"),
        (
            "INSERT INTO a VALUES (1); TRUNCATE b; INSERT INTO b VALUES (1)",
            "TRUNCATE a CASCADE",
            "TRUNCATE a, b RESTART IDENTITY",
            "TRUNCATE a RESTART IDENTITY CASCADE",
        ),
        (
            "Begin",
            "Relation public.a d (id int4 *)",
            "Insert public.a ('1')",
            "Relation public.b d (id int4 *)",
            "Truncate public.b 0",
            "Insert public.b ('1')",
            "Commit",
            "Begin",
            "Relation public.a d (id int4 *)",
            "Relation public.b d (id int4 *)",
            "Truncate public.a, public.b 1",
            "Commit",
            "Begin",
            "Relation public.a d (id int4 *)",
            "Relation public.b d (id int4 *)",
            "Truncate public.a, public.b 2",
            "Commit",
            "Begin",
            "Relation public.a d (id int4 *)",
            "Relation public.b d (id int4 *)",
            "Truncate public.a, public.b 3",
            "Commit",
        ),
        since=11,
    ),
    Scenario(
        "types of users",
        (
            "CREATE SCHEMA s",
            "CREATE TYPE s.mood AS ENUM ('sad', 'happy')",
            "CREATE TYPE pair AS (x int, y text)",
            "CREATE DOMAIN posint AS int CHECK (VALUE > 0)",
            "CREATE TABLE s.t (id posint PRIMARY KEY, m s.mood, ms s.mood[], p pair)",
        ),
        ("INSERT INTO s.t VALUES (1, 'happy', '{sad,NULL}', '(1,\"a,b\")')",),
        (
            "Begin",
            "Type of posint: pg_catalog.int4",
            "Type of mood: s.mood",
            "Type of _mood: s._mood",
            "Type of pair: public.pair",
            "Relation s.t d (id posint *, m mood, ms _mood, p pair)",
            "Insert s.t ('1', 'happy', '{sad,NULL}', '(1,\"a,b\")')",
            "Commit",
        ),
    ),
    Scenario(
        "names that need quotes",
        (
            'CREATE SCHEMA "We.ird ""S"""',
            'CREATE TABLE "We.ird ""S"""."t/../ü%" ("a b\n" int PRIMARY KEY, "Id" int, "id" int)',
        ),
        ('INSERT INTO "We.ird ""S"""."t/../ü%" VALUES (1, 2, 3)',),
        (
            "Begin",
            'Relation We.ird "S".t/../ü% d (a b\n int4 *, Id int4, id int4)',
            "Insert We.ird \"S\".t/../ü% ('1', '2', '3')",
            "Commit",
        ),
    ),
    Scenario(
        "shape that changes within a transaction",
        ("CREATE TABLE t (id int PRIMARY KEY)",),
        (
            "BEGIN; INSERT INTO t VALUES (1); ALTER TABLE t ADD v text; INSERT INTO t VALUES (2, 'b'); "
            "SAVEPOINT a; INSERT INTO t VALUES (3, 'c'); ROLLBACK TO a; ALTER TABLE t RENAME TO u; "
            "INSERT INTO u VALUES (4, 'd'); COMMIT",
        ),
        (
            "Begin",
            "Relation public.t d (id int4 *)",
            "Insert public.t ('1')",
            "Relation public.t d (id int4 *, v text)",
            "Insert public.t ('2', 'b')",
            "Relation public.u d (id int4 *, v text)",
            "Insert public.u ('4', 'd')",
            "Commit",
        ),
    ),
    Scenario(
        "transactions without changes",
        (),
        ("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)"),
        (
            "Begin",
            "Commit",
            "Begin",
            "Relation public.t d (id int4 *)",
            "Insert public.t ('1')",
            "Commit",
        ),
        until=14,
    ),
    Scenario(
        "origin",
        ("CREATE TABLE t (id int PRIMARY KEY)", "SELECT pg_replication_origin_create('north')"),
        (
            "SELECT pg_replication_origin_session_setup('north')",
            "BEGIN; SELECT pg_replication_origin_xact_setup('FFFFFFFF/1', '2020-01-01 00:00+00'); "
            "INSERT INTO t VALUES (1); COMMIT",
            "SELECT pg_replication_origin_session_reset()",
            "INSERT INTO t VALUES (2)",
        ),
        (
            "Begin",
            "Origin north FFFFFFFF/1",
            "Relation public.t d (id int4 *)",
            "Insert public.t ('1')",
            "Commit",
            "Begin",
            "Insert public.t ('2')",
            "Commit",
        ),
    ),
    Scenario(
        "logical messages",
        ("CREATE TABLE t (id int PRIMARY KEY)",),
        (
            "BEGIN; INSERT INTO t VALUES (1); SELECT pg_logical_emit_message(false, 'beat', 'now'); "
            "SELECT pg_logical_emit_message(true, 'ä', '\\x00ff'::bytea); "
            "SELECT pg_logical_emit_message(true, '', ''); COMMIT",
            "SELECT pg_logical_emit_message(true, 'alone', 'x')",
        ),
        (
            "Message beat non-transactional: 6e6f77",
            "Begin",
            "Relation public.t d (id int4 *)",
            "Insert public.t ('1')",
            "Message ä transactional: 00ff",
            "Message  transactional: ",
            "Commit",
            "Begin",
            "Message alone transactional: 78",
            "Commit",
        ),
        since=14,
        options={"messages": "true"},
    ),
    Scenario(
        "binary values",
        (
            "CREATE TABLE t (id int PRIMARY KEY, v text, n bigint, acl aclitem)",
            "INSERT INTO t VALUES (1, 'one', NULL, 'postgres=r/postgres')",
        ),
        ("UPDATE t SET id = 2, n = 258",),
        (
            "Begin",
            "Relation public.t d (id int4 *, v text, n int8, acl aclitem)",
            "Update public.t K (binary 00000001, NULL, NULL, NULL) → "
            "(binary 00000002, binary 6f6e65, binary 0000000000000102, 'postgres=r/postgres')",
            "Commit",
        ),
        since=14,
        options={"binary": "true"},
    ),
    Scenario(
        "bytes that are not UTF-8",
        ('CREATE TABLE t (id int PRIMARY KEY, "caf\udce9" text)',),
        ("INSERT INTO t VALUES (1, E'\\xff\\xfe')",),
        (
            "Begin",
            "Relation public.t d (id int4 *, caf\udce9 text)",
            "Insert public.t ('1', '\udcff\udcfe')",
            "Commit",
        ),
        encoding="SQL_ASCII",
    ),
    *STREAMED,
    *PREPARED,
)
