"""Every type of PostgreSQL 18 with its extreme values: what goes in is in silver, equal, or is recorded.

Each value travels as an insert, as an update of an earlier row, and as a key where the type can be one; in
text and in binary format. What Spark writes, which are maps and keys of arrays or reals, is in silver in the
slow tier only. NULL in silver for a value means one row in misfits.
"""

from collections import Counter

import pytest

from pipeline.postgres.embedded import EmbeddedServer
from tests.support.servers import Database, ServerOf, drop_database
from tests.support.values.run import MODES, Carried, carry
from tests.support.values.table import BAGS, FAMILIES, NEWEST_FAMILIES

UNORDERED = {
    *("json", "jsonpath", "xml", "xid", "cid", "pg_snapshot", "txid_snapshot", "refcursor", "aclitem"),
    *("point", "lseg", "line", "box", "path", "polygon", "circle", "odd.corner"),
    *("public.lquery", "public.ltxtquery"),
}
KINDS = [kind for kinds in (FAMILIES | NEWEST_FAMILIES).values() for kind in kinds]


@pytest.fixture(
    scope="module",
    params=["most keys", pytest.param("all keys", marks=[pytest.mark.slow, pytest.mark.spark])],
)
def carried(
    request: pytest.FixtureRequest,
    server_of: ServerOf,
    server: EmbeddedServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Carried:
    """Take all values through both formats once."""
    found = Carried()
    for started, families, bags in ((server_of(18), FAMILIES, BAGS), (server, NEWEST_FAMILIES, {})):
        database = Database.of(started)
        database.run("CREATE DATABASE typed_values")
        database = Database(started, "typed_values", started.conninfo_of("typed_values"))
        root, with_spark = str(tmp_path_factory.mktemp("lakes")), request.param == "all keys"
        carry(found, database, families, bags, root, with_spark=with_spark)
        drop_database(started, "typed_values")
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(kind.type, marks=pytest.mark.slow if "map<" in kind.silver else ()) for kind in KINDS],
)
def test_each_value_of_a_type_is_in_silver_or_in_misfits(carried: Carried, name: str) -> None:
    faults = {mode: carried.verdicts[mode][name].faults for mode in MODES}
    assert faults == {"text": [], "binary": []}
    assert carried.verdicts["text"][name].counts["values"] > 0


def test_types_with_an_order_were_keys(carried: Carried) -> None:
    without = {kind.type.removesuffix("[]") for kind in KINDS if kind.type not in carried.keys}
    assert without == UNORDERED


def said(counts: Counter[str]) -> str:
    return (
        f"{counts['values']} values in = {counts['equal']} equal + {counts['misfits']} misfits, "
        f"{counts['recorded']} recorded by the writes"
    )


@pytest.mark.promise("equal values")
def test_values_in_are_values_equal_and_misfits_recorded(carried: Carried) -> None:
    for mode in MODES:
        print(f"\n{mode}")
        whole: Counter[str] = Counter()
        for name, verdict in carried.verdicts[mode].items():
            counts = verdict.counts
            whole += counts
            print(f"{name}: {said(counts)}")
            assert counts["values"] == counts["equal"] + counts["misfits"], name
        print(f"all types: {said(whole)}")


@pytest.mark.promise("equal values")
def test_bronze_is_the_same_in_both_formats(carried: Carried) -> None:
    assert carried.unequal_bronze == []
