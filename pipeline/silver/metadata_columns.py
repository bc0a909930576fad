"""Our own two columns of a silver table, beside the source's: what they are called, and which ones they are.

A source column of such a name keeps it, and ours gets underscores behind its own; be that column there when
the table is made, or added or renamed later.
"""

from collections.abc import Collection, Iterable, Sequence

from pipeline.silver.schema_operations import RenameColumn

COMMIT_LSN, COMMIT_TIME = "_commit_lsn", "_commit_time"


def free_names(taken: Iterable[str]) -> list[str]:
    """Return names for our columns that no other column has: Delta does not tell upper from lower case."""
    names = {name.lower() for name in taken}
    return [_free(base, names) for base in (COMMIT_LSN, COMMIT_TIME)]


def find_metadata_columns(
    columns: Sequence[str], known: Collection[str], coming: Collection[str]
) -> list[str]:
    """Find our columns among a table's where none are recorded: in a lake of before, or after a crash.

    `known` are the columns that are recorded as the source's; `coming` those that the source's versions have,
    which a run that ended early may have made.
    """
    return [_find(base, columns, known, coming) for base in (COMMIT_LSN, COMMIT_TIME)]


def _find(base: str, columns: Sequence[str], known: Collection[str], coming: Collection[str]) -> str:
    alike = [n for n in columns if n.lower().rstrip("_") == base and n not in known]
    alike = [n for n in alike if n not in coming] or alike
    return max(alike, key=len, default=_free(base, {name.lower() for name in columns}))


def plan_metadata_renames(
    own: Sequence[str], taken: Iterable[str], wanted: Iterable[str]
) -> list[RenameColumn]:
    """Plan what has our columns give way to those that the source's columns are to be.

    `taken` are the names that the table's other columns have, `wanted` those that they get.
    """
    wanted = {name.lower() for name in wanted}
    names = {*wanted, *(name.lower() for name in (*taken, *own))}
    renames = []
    for name, base in zip(own, (COMMIT_LSN, COMMIT_TIME), strict=False):
        if name.lower() in wanted:
            to = _free(base, names)
            sentence = f"column {name}, which is ours, is {to} now: the source has one of that name"
            renames.append(RenameColumn(name, to, sentence))
    return renames


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name
