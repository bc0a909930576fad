"""pgdelta's two columns of a silver table, `_commit_lsn` and `_commit_time`: name and find them.

A source column with such a name keeps it, and pgdelta's column gets trailing underscores, whether the source
column exists when the table is created, is added or is renamed later.
"""

from collections.abc import Collection, Iterable, Sequence

from pipeline.silver.schema_operations import RenameColumn

COMMIT_LSN, COMMIT_TIME = "_commit_lsn", "_commit_time"


def free_names(used: Iterable[str]) -> list[str]:
    """Return names for the two columns that no other column has; Delta ignores case in names."""
    names = {name.lower() for name in used}
    return [_free(base, names) for base in (COMMIT_LSN, COMMIT_TIME)]


def find_metadata_columns(
    columns: Sequence[str], recorded: Collection[str], source_names: Collection[str]
) -> list[str]:
    """Find the two columns among a table's columns if a crash prevented that they were registered.

    `recorded` are the columns that are registered as the source's; `source_names` are the names of the
    source's relation versions, which the run that ended early may have added.
    """
    return [_find(base, columns, recorded, source_names) for base in (COMMIT_LSN, COMMIT_TIME)]


def _find(base: str, columns: Sequence[str], recorded: Collection[str], source_names: Collection[str]) -> str:
    candidates = [n for n in columns if n.lower().rstrip("_") == base and n not in recorded]
    candidates = [n for n in candidates if n not in source_names] or candidates
    return max(candidates, key=len, default=_free(base, {name.lower() for name in columns}))


def plan_metadata_renames(
    metadata_columns: Sequence[str], silver: Iterable[str], targets: Iterable[str]
) -> list[RenameColumn]:
    """Plan the renames of the two columns that free the names which the source's columns will have.

    `silver` are the current names of the table's other columns, `targets` their future names.
    """
    targets = {name.lower() for name in targets}
    used = {*targets, *(name.lower() for name in (*silver, *metadata_columns))}
    renames = []
    for name, base in zip(metadata_columns, (COMMIT_LSN, COMMIT_TIME), strict=False):
        if name.lower() in targets:
            to = _free(base, used)
            sentence = (
                f"Column {name} of pgdelta was renamed to {to}, because the source has a column {name}."
            )
            renames.append(RenameColumn(name, to, sentence))
    return renames


def _free(name: str, used: Collection[str]) -> str:
    while name in used:
        name += "_"
    return name
