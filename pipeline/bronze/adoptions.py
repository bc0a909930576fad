"""Request for an adoption: the Delta table that another program wrote, at one version of it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pipeline.table_name import TableName

_PREFIX = "adopt "


@dataclass(frozen=True, slots=True)
class Adoption:
    """A Delta table whose rows are compared with the source; its `ignored` columns are not read."""

    path: str
    version: int
    ignored: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The reason of a request for this adoption."""
        named = {"path": self.path, "version": self.version, "ignored": list(self.ignored)}
        return _PREFIX + json.dumps(named, ensure_ascii=False)

    @classmethod
    def of_reason(cls, reason: str) -> Adoption | None:
        """Return the adoption that a reason names, None if the request is for something else."""
        if not reason.startswith(_PREFIX):
            return None
        named = json.loads(reason.removeprefix(_PREFIX))
        return cls(named["path"], named["version"], tuple(named["ignored"]))


def adopts_no_protected(name: TableName) -> str:
    """Return the sentence about a table with protected columns, whose values an adoption would read."""
    return (
        f"Table {name} has columns that are left out, hashed or masked, and the Delta table has their "
        "values. Let it be copied: request that with pgdelta resync."
    )
