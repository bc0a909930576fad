"""The receipt of `pgdelta forget`: what was erased where, without any value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from pipeline.delta.ended_history import RemovedFiles
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from pipeline.terminal import print_list, print_paragraph
from pipeline.units import format_count


@dataclass(frozen=True, slots=True)
class PlaceReceipt:
    """One table of the lake: rows erased, files written again without them, files and bytes removed."""

    place: str
    rows: int = 0
    files_rewritten: int = 0
    files_removed: int = 0
    byte_count: int = 0
    files_left: int = 0  # young files that no commit names; they have no row of the subject

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts of the printed list."""
        return self.rows, self.files_rewritten, self.files_removed, self.byte_count

    def with_removed(self, removed: RemovedFiles) -> PlaceReceipt:
        """Return the receipt with the files that were removed."""
        return replace(
            self,
            files_removed=removed.count,
            byte_count=removed.byte_count,
            files_left=removed.left,
        )

    def as_row(self) -> Mapping[str, object]:
        """Return the row that is recorded."""
        return {
            "place": self.place,
            "rows": self.rows,
            "files_rewritten": self.files_rewritten,
            "files_removed": self.files_removed,
            "bytes": self.byte_count,
        }


@dataclass(frozen=True, slots=True)
class ForgetReceipt:
    """What was erased, or would be: `keys_given`, and `keys` with those that key changes connect with them.

    Silver can be read as of `as_of_lsn` and later. `files_searched` are the files that remain, in which no
    row of the keys was found. A store that `keeps_versions` still has the removed objects.
    """

    pipeline: str
    table: TableName
    keys_given: int
    keys: int
    places: tuple[PlaceReceipt, ...]
    as_of_lsn: LSN
    is_dry_run: bool = False
    files_searched: int = 0
    keeps_versions: bool | None = False  # of the objects of a store, None if it does not say

    def exit_code(self, strict: bool) -> int:
        """Return 0: what is not erased is an error."""
        return 0

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            **self.table._asdict(),
            "dry_run": self.is_dry_run,
            "keys_given": self.keys_given,
            "keys": self.keys,
            "places": [place.as_row() for place in self.places],
            "as_of_lsn": str(self.as_of_lsn),
            "files_searched": self.files_searched,
            "store_keeps_versions": self.keeps_versions,
        }

    def print(self, console: Console) -> None:
        """Print the receipt."""
        rows = sum(place.rows for place in self.places)
        verb = "would be erased" if self.is_dry_run else "erased"
        keys = format_count(self.keys, "key")
        print_paragraph(console, f"forget {self.table}: {keys}, {format_count(rows, 'row')} {verb}")
        console.print()
        counts = ("rows", "rewritten", "removed", "bytes")
        print_list(
            console,
            ("place", *counts),
            [
                (
                    place.place,
                    *(
                        f"{count:,}"
                        for count in (
                            place.rows,
                            place.files_rewritten,
                            place.files_removed,
                            place.byte_count,
                        )
                    ),
                )
                for place in self.places
            ],
            right=counts,
        )
        console.print()
        for line in self._notes():
            print_paragraph(console, line)

    def _notes(self) -> list[str]:
        notes = []
        if self.keys > self.keys_given:
            notes.append(f"{self.keys - self.keys_given} of the keys by key changes from or to those given")
        if not any(place.rows for place in self.places):
            notes.append("no row has the keys: check how they are written, or they were erased before")
        if self.is_dry_run:
            return [*notes, "nothing was changed; files that rows leave are removed too"]
        searched = format_count(self.files_searched, "file")
        notes.append(f"{searched} searched, which remain: no row has the keys")
        notes.append(f"as-of reads this table from {self.as_of_lsn} on: its earlier versions are gone")
        if self.keeps_versions:
            notes.append(
                "not erased: the bucket keeps removed objects as older versions. These have the rows until "
                "you or its lifecycle rule delete them"
            )
        elif self.keeps_versions is None:
            notes.append(
                "the store does not say whether it keeps removed objects: if the bucket has versions or soft "
                "delete, these have the rows until you delete them"
            )
        if left := sum(place.files_left for place in self.places):
            notes.append(f"{left} files that no commit names yet were searched and left")
        return notes
