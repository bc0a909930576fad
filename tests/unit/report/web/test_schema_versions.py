"""The history of a table's schema, from rows of bronze/relations."""

from typing import Any

from pipeline.protocol.lsn import LSN
from pipeline.report.web.facts import SchemaVersion, list_schema_versions


def column(name: str, number: int | None = None, **more: Any) -> dict[str, Any]:
    plain = {"type_oid": 23, "type_modifier": -1, "type_name": "int4", "element_oid": None, "is_key": False}
    return {"name": name, "attribute_number": number, **plain, **more}


def version(lsn: int, *columns: dict[str, Any], oid: int = 1, identity: str = "d") -> dict[str, Any]:
    return {"lsn": lsn, "relation_id": oid, "replica_identity": identity, "columns": list(columns)}


ID = column("id", 1, is_key=True)


def test_the_first_version_lists_its_columns_and_equal_ones_are_left_out() -> None:
    name = column("name", 2, type_oid=1043, type_modifier=24, type_name="varchar")
    first = SchemaVersion(LSN(5), ("First version: id int4, name varchar(20).",))
    assert list_schema_versions([version(9, ID, name), version(5, ID, name)]) == (first,)
    assert list_schema_versions([]) == ()


def test_changes_are_sentences() -> None:
    price = {"type_oid": 1700, "type_name": "numeric"}
    rows = [
        version(1, ID, column("a", 2), column("p", 3, **price, type_modifier=(10 << 16 | 2) + 4)),
        version(
            2,
            ID,
            column("b", 2, type_oid=20, type_name="int8"),
            column("p", 3, **price, type_modifier=(12 << 16 | 2) + 4),
            column("t", 4, type_oid=1114, type_name="timestamp", type_modifier=3),
        ),
        version(3, column("id", 1), column("b", 2, type_oid=20, type_name="int8"), identity="f"),
        version(4, column("id", 1), column("b", 2, type_oid=20, type_name="int8"), oid=7, identity="f"),
    ]
    assert [found.changes for found in list_schema_versions(rows)[1:]] == [
        (
            "Column a was renamed to b.",
            "Column b changed from int4 to int8.",
            "Column p changed from numeric(10,2) to numeric(12,2).",
            "Column t timestamp(3) was added.",
        ),
        (
            "Column p was dropped.",
            "Column t was dropped.",
            "Column id left the replica identity.",
            "The replica identity changed from default to full.",
        ),
        ("Another relation has the name: oid 1 before, 7 now.",),
    ]


def test_two_columns_that_swap_their_names_are_renamed() -> None:
    rows = [version(1, column("a", 1), column("b", 2)), version(2, column("b", 1), column("a", 2))]
    assert list_schema_versions(rows)[1].changes == (
        "Column a was renamed to b.",
        "Column b was renamed to a.",
    )


def test_without_attribute_numbers_columns_are_compared_by_name() -> None:
    unknown = {"type_name": None, "type_oid": 99}
    rows = [version(1, column("a")), version(2, column("b", 1, **unknown))]
    assert list_schema_versions(rows)[1].changes == ("Column a was dropped.", "Column b oid 99 was added.")
