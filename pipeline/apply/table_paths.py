"""Folders of silver tables: each is that of one table, and lies in no other's."""

from collections.abc import Mapping

from pipeline.config.config import Config
from pipeline.errors import LakeError
from pipeline.metadata.registry import RegisteredTable
from pipeline.silver.versions import resolve_path
from pipeline.table_name import TableName


def refuse_nested_folder(config: Config, name: TableName) -> None:
    """Raise LakeError where a table's folder would lie in another's: VACUUM would take its files away."""
    rule = config.rule_for(name)
    if rule and rule.target is None and any(name[0] == other.target for other in config.tables):
        raise LakeError(
            f"{name} would lie in the folder of the silver table {name[0]}, which is another "
            "table's target: give one of them another target"
        )


def why_folder_is_taken(
    name: TableName, path: str, registered: Mapping[TableName, RegisteredTable], root: str
) -> str | None:
    """Say why a table may not go on in a folder that has rows, None where they are its own.

    All tables record their positions alike, so a folder does not tell whose it is: where tables are on record
    does. Of a folder that is on record for nobody the table was cut off as it began.
    """
    places = {other: resolve_path(table.path, other, root) for other, table in registered.items()}
    if places.get(name) == path:
        return None
    owner = next((other for other, place in sorted(places.items()) if place == path), None)
    if owner is None and name not in places:
        return None
    whose = f"those of {owner}" if owner else f"not those of now, which are in {places[name]}"
    return (
        f"{name} is held: the rows in its folder {path} are {whose}; give it another target, or "
        "move the folder away, and the table begins there anew"
    )
