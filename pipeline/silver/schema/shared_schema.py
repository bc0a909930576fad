"""The columns of a shared silver table, which follow from those of its sources' tables. Pure.

A shared table has the data files of its sources' tables, so a column must have the same name in the files of
all of them, and a type that holds the values of all: readers widen what the files have. A source that lacks
a column has NULL there. Comes in as versions of the tables, goes out as the `protocol` and `metaData` actions
of a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.delta.definition import Definition
from pipeline.delta.features import WIDENED, Feature
from pipeline.delta.log_retention import short_log
from pipeline.delta.native_commit import Action
from pipeline.delta.native_write import find_unsupported
from pipeline.delta.schema import COLUMN_ID, PHYSICAL_NAME, DeltaType, SchemaField, TableSchema
from pipeline.delta.table_log import Snapshot
from pipeline.silver.types.types import holds, wide_enough

SOURCE_COLUMN = "_source"
_COMMENT = "comment"
_WIDENING = ("typeWidening", "typeWidening-preview")
_MAPPING = "columnMapping"
# features that a reader needs for the files of a table, and those that matter for its own log only
_FILE_FEATURES = frozenset((_MAPPING, "timestampNtz", "variantType", "variantType-preview", *_WIDENING))
_LOG_FEATURES = frozenset(("deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"))


class NotSharable(Exception):
    """The rows of a source cannot be in the shared table, why, and what to do about it."""

    advice = (
        "Change the tables of all sources alike, or give this one another target. If a source has left, run "
        "pgdelta rebuild for the tables of the others."
    )


class OtherFileNames(NotSharable):
    """A column has different names in the files of two sources, which new files mend."""

    advice = "Run pgdelta rebuild for the tables of all sources."


class ForeignFeature(NotSharable):
    """The shared table has what another writer gave it and what commits of pgdelta do not honour."""

    advice = "Remove it from the shared table, or give this one another target."


def check_shared(shared: Snapshot) -> None:
    """Raise NotSharable if a shared table cannot be written as it is."""
    if shared.exists and shared.partition_columns != (SOURCE_COLUMN,):
        raise ForeignFeature(f"The shared table is not partitioned by {SOURCE_COLUMN} any more.")
    found = find_unsupported(shared, removes=True, known=_FILE_FEATURES)
    if shared.exists and found is not None:
        raise ForeignFeature(f"The shared table has {found}, which only Spark writes.")


@dataclass(frozen=True, slots=True)
class Part:
    """The table of a source, as of one version; in a union only the parent `adds_columns`."""

    source: str
    snapshot: Snapshot
    adds_columns: bool = True

    @property
    def fields(self) -> Sequence[SchemaField]:
        """Its columns."""
        return TableSchema.of_json(self.snapshot.schema_string).fields

    def check(self) -> None:
        """Raise NotSharable if readers of another table could not read its files."""
        if any(add.get("deletionVector") for add in self.snapshot.files.values()):
            raise NotSharable("Its table has deletion vectors, which pgdelta did not write.")
        _ = self.features

    @property
    def features(self) -> set[str]:
        """The features that a reader needs for its files; raise NotSharable if others are needed."""
        protocol = self.snapshot.protocol
        found = set(protocol.get("readerFeatures") or ())
        if not found and int(protocol.get("minReaderVersion", 1)) >= 2:
            found.add(_MAPPING)
        if other := sorted(found - _FILE_FEATURES - _LOG_FEATURES):
            raise NotSharable(f"Its table has the feature {', '.join(other)}.")
        mode = self.snapshot.configuration.get(Feature.COLUMN_MAPPING.value[0], "none")
        if mode == "none":
            found.discard(_MAPPING)
        elif mode != Feature.COLUMN_MAPPING.value[1]:
            raise NotSharable(f"Its table has column mapping by {mode}.")
        return found & _FILE_FEATURES


@dataclass(slots=True)
class _Columns:
    """Columns that are collected from several tables."""

    found: list[SchemaField] = field(default_factory=list)
    _names: dict[str, tuple[int, str]] = field(default_factory=dict)  # position and whose, by lower case
    _physical: dict[str, str] = field(default_factory=dict)  # whose, by name in files

    def add_all(self, part: Part, whose: str) -> None:
        """Add the columns of a source; raise NotSharable if one contradicts those of others."""
        for each in part.fields:
            is_known = each.name.lower() in self._names or each.physical_name.lower() in self._physical
            if is_known or part.adds_columns:
                self.add(each, whose)

    def add(self, each: SchemaField, whose: str) -> None:
        """Add a column; raise NotSharable if it contradicts another one."""
        name = each.name
        if SOURCE_COLUMN in (name.lower(), each.physical_name.lower()):
            raise NotSharable(f"It has a column {name}, and that of the shared table has the same name.")
        if name.lower() not in self._names:
            if (other := self._physical.get(each.physical_name.lower())) is not None:
                raise NotSharable(f"Its column {name} has another name in {other}.")
            self._names[name.lower()] = (len(self.found), whose)
            self._physical[each.physical_name.lower()] = whose
            self.found.append(SchemaField(name, each.type, _kept(each.metadata)))
            return
        position, other = self._names[name.lower()]
        known = self.found[position]
        if known.name != name:
            raise NotSharable(f"Its column {name} is {known.name} in {other}.")
        kind = _wider(known, each)
        if kind is None:
            raise NotSharable(f"Its column {name} has the type {each.ddl}, and {known.ddl} in {other}.")
        if known.physical_name != each.physical_name:
            raise OtherFileNames(f"Its column {name} has another name in its files than in those of {other}.")
        self.found[position] = _widened(known, each, kind)


def added_fields(shared: Snapshot, part: Part) -> tuple[SchemaField, ...]:
    """Return the columns of a shared table with those that a source adds; raise NotSharable if it cannot."""
    columns = _Columns()
    for each in _own_fields(shared):
        columns.add(each, "the shared table")
    columns.add_all(part, "the shared table")
    return tuple(columns.found)


def derived_fields(shared: Snapshot, part: Part, others: Iterable[Part]) -> tuple[SchemaField, ...]:
    """Return the columns of a shared table as they follow from those of all sources.

    The table's order is kept, and so are columns that no source has any more, unless a name contradicts them.
    Raise NotSharable if the columns of a source contradict those of the others.
    """
    columns = _Columns()
    named = [*((other, other.source) for other in others), (part, "other sources")]
    for each, whose in sorted(named, key=lambda pair: not pair[0].adds_columns):
        columns.add_all(each, whose)
    order = {}
    for position, own in enumerate(_own_fields(shared)):
        order[own.physical_name.lower()] = position
        try:
            columns.add(own, "the shared table")
        except NotSharable:
            continue  # every source has it with another name or type now
    last = len(order)
    return tuple(sorted(columns.found, key=lambda each: order.get(each.physical_name.lower(), last)))


def table_actions(shared: Snapshot, fields: Sequence[SchemaField], parts: Iterable[Part]) -> list[Action]:
    """Return the actions that give a shared table its columns, and the features that its files need."""
    needed = set[str]().union(*(part.features for part in parts))
    before = Definition.of(shared) if shared.exists else None
    own = {each.physical_name: each.metadata for each in before.fields} if before else {}
    columns = []
    for each in (SchemaField(SOURCE_COLUMN, "string", nullable=False), *fields):
        known = own.get(each.physical_name, {})
        ids = {key: known[key] for key in (COLUMN_ID, PHYSICAL_NAME) if key in known}
        columns.append(replace(each, metadata={**each.metadata, **ids}))
    if before is None:
        found = Definition.of_new(TableSchema(tuple(columns)), short_log(0), [SOURCE_COLUMN])
    else:
        found = before.with_fields(columns)
    if any(WIDENED in each.metadata for each in columns) and not needed.intersection(_WIDENING):
        needed.add(_WIDENING[0])
    found = found.with_protocol(*needed - {_MAPPING})
    if _MAPPING in needed or found.is_mapped:
        found = found.mapped(keeps_names=True)
    if needed.intersection(_WIDENING):
        found = found.with_properties(dict([Feature.TYPE_WIDENING.value]))
    if before is not None and found.fields == before.fields:
        found = found.with_metadata(schemaString=shared.schema_string)
    return found.actions(before)


def _own_fields(shared: Snapshot) -> list[SchemaField]:
    fields = TableSchema.of_json(shared.schema_string).fields
    return [each for each in fields if each.name != SOURCE_COLUMN]


def _kept(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that a column of the shared table has from that of a source."""
    return {key: metadata[key] for key in (PHYSICAL_NAME, _COMMENT, WIDENED) if key in metadata}


def _wider(one: SchemaField, other: SchemaField) -> DeltaType | None:
    """Return the type that holds the values of two columns, None if Delta widens neither to it."""
    if one.type == other.type or holds(one.ddl, other.ddl):
        return one.type
    if holds(other.ddl, one.ddl):
        return other.type
    kind = wide_enough(one.ddl, other.ddl)
    return kind and TableSchema.of_ddl(f"v {kind.ddl}").fields[0].type


def _widened(known: SchemaField, each: SchemaField, kind: DeltaType) -> SchemaField:
    """Return a column of the shared table with that of a source, and the changes of types that files need."""
    kept = _kept(each.metadata)
    changes = [*known.metadata.get(WIDENED, ())]
    changes += [change for change in kept.get(WIDENED, ()) if change not in changes]
    for narrow in (known.type, each.type):
        if narrow != kind and all(change["fromType"] != narrow for change in changes):
            changes.append({"toType": kind, "fromType": narrow})
    metadata = {**kept, **known.metadata} | ({WIDENED: changes} if changes else {})
    return replace(known, type=kind, metadata=metadata)


def shared_file(path: str, add: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the `add` action by which a shared table has a file of a source's table."""
    kept = {key: value for key, value in add.items() if key in ("size", "modificationTime", "stats")}
    return {"path": path, "partitionValues": {SOURCE_COLUMN: source}, **kept, "dataChange": True}
