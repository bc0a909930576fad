"""Protocol and metadata of a Delta table by its log, and changes of its columns.

Pure. A change is made as Spark's ALTER TABLE makes it. Once a table has column mapping, a column keeps its
name in data files (`physicalName`) and its id, whatever it is called, so that no file is written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from pipeline.delta.column_lists import with_column_names
from pipeline.delta.features import WIDENED, Feature
from pipeline.delta.log import now_milliseconds
from pipeline.delta.native_commit import Action
from pipeline.delta.schema import COLUMN_ID, PHYSICAL_NAME, DeltaType, SchemaField, TableSchema, mentions
from pipeline.delta.table_log import Snapshot

MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
_MAPPING, _MAPPING_BY_NAME = Feature.COLUMN_MAPPING.value
_MAPPING_FEATURE = "columnMapping"
_FEATURE_NAMES = {
    Feature.COLUMN_MAPPING: _MAPPING_FEATURE,
    Feature.TYPE_WIDENING: "typeWidening",
    Feature.TIMESTAMP_NTZ: "timestampNtz",
}
_REMOVABLE = {*_FEATURE_NAMES.values(), "typeWidening-preview"}  # once data files are plain
# of a writer without a list of features: what each version adds
_LEGACY_FEATURES = (
    (2, ("appendOnly", "invariants")),
    (3, ("checkConstraints",)),
    (4, ("changeDataFeed", "generatedColumns")),
    (5, (_MAPPING_FEATURE,)),
    (6, ("identityColumns",)),
)
_PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}
_LISTED = 7  # the version of a writer with a list of features
_LISTED_BY_READERS = 3


@dataclass(frozen=True, slots=True)
class Definition:
    """The `protocol` and `metaData` actions of a table, as they are or as a commit makes them."""

    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @staticmethod
    def of(snapshot: Snapshot) -> Definition:
        """Return that of a version of a table."""
        return Definition(dict(snapshot.protocol), dict(snapshot.metadata))

    @staticmethod
    def of_new(
        schema: TableSchema, configuration: Mapping[str, str], partition_by: Sequence[str] = ()
    ) -> Definition:
        """Return that of a new table, with the features that its types need."""
        metadata = {
            "createdTime": now_milliseconds(),
            "id": str(uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema.json,
            "partitionColumns": list(partition_by),
            "configuration": dict(configuration),
        }
        return Definition(dict(_PLAIN), metadata).with_features_of_types()

    @property
    def fields(self) -> tuple[SchemaField, ...]:
        """The columns."""
        return TableSchema.of_json(self.metadata["schemaString"]).fields

    @property
    def configuration(self) -> dict[str, str]:
        """The properties."""
        return dict(self.metadata.get("configuration") or {})

    @property
    def is_mapped(self) -> bool:
        """Whether columns have names of their own in data files."""
        return self.configuration.get(_MAPPING) == _MAPPING_BY_NAME

    @property
    def asks_readers(self) -> tuple[int, frozenset[str]]:
        """What readers must support: a version of the protocol, and table features."""
        features = frozenset(self.protocol.get("readerFeatures") or ())
        return int(self.protocol.get("minReaderVersion", 1)), features

    def actions(self, before: Definition | None = None) -> list[Action]:
        """Return the actions that make it, of those that it has not had before."""
        found: list[Action] = []
        if before is None or self.protocol != before.protocol:
            found.append({"protocol": dict(self.protocol)})
        if before is None or self.metadata != before.metadata:
            found.append({"metaData": dict(self.metadata)})
        return found

    def with_metadata(self, **changes: Any) -> Definition:
        """Return it with other values of its metadata."""
        return replace(self, metadata={**self.metadata, **changes})

    def with_fields(self, fields: Iterable[SchemaField]) -> Definition:
        """Return it with other columns."""
        return self.with_metadata(schemaString=TableSchema(tuple(fields)).json)

    def with_properties(self, properties: Mapping[str, str]) -> Definition:
        """Return it with more properties, or other values of them."""
        return self.with_metadata(configuration={**self.configuration, **properties})

    def enabled(self, *features: Feature) -> Definition:
        """Return it with features, which readers must support from then on."""
        found = self
        for feature in features:
            key, value = feature.value
            if feature is Feature.COLUMN_MAPPING and not found.is_mapped:
                found = found.mapped(keeps_names=True)
            elif feature is not Feature.TIMESTAMP_NTZ:  # that is no property
                found = found.with_properties({key: value})
            found = found.with_protocol(feature)
        return found

    def mapped(self, *, keeps_names: bool = False) -> Definition:
        """Return it with column mapping for all columns; what is mapped stays as it is.

        Other columns have a new name in data files, or keep theirs.
        """
        ids = (int(each.metadata.get(COLUMN_ID, 0)) for each in self.fields)
        last = max([int(self.configuration.get(MAX_COLUMN_ID, 0)), *ids])
        fields = []
        for each in self.fields:
            metadata = dict(each.metadata)
            if COLUMN_ID not in metadata:
                metadata[COLUMN_ID] = last = last + 1
            if PHYSICAL_NAME not in metadata:
                metadata[PHYSICAL_NAME] = each.name if keeps_names else f"col-{uuid4()}"
            fields.append(replace(each, metadata=metadata))
        properties = {_MAPPING: _MAPPING_BY_NAME, MAX_COLUMN_ID: str(last)}
        found = self.with_fields(fields).with_properties(properties)
        return found.with_protocol(Feature.COLUMN_MAPPING)

    def with_column(self, field: SchemaField) -> Definition:
        """Return it with one more column, the last one."""
        found = self.with_fields((*self.fields, field))
        return found.mapped() if self.is_mapped else found

    def renamed(self, name: str, to: str) -> Definition:
        """Return it with another name of a column; it has column mapping."""
        fields = (replace(each, name=to) if each.name == name else each for each in self.fields)
        partition_by = [to if each == name else each for each in self.metadata.get("partitionColumns") or ()]
        found = self.with_fields(fields).with_metadata(partitionColumns=partition_by)
        return found.with_properties(with_column_names(self.configuration, {name: to}))

    def without(self, name: str) -> Definition:
        """Return it without a column; it has column mapping."""
        found = self.with_fields(each for each in self.fields if each.name != name)
        return found.with_properties(with_column_names(self.configuration, {name: None}))

    def widened(self, name: str, kind: DeltaType) -> Definition:
        """Return it with a wider type of a column, which is not nested; it has type widening."""
        fields = []
        for each in self.fields:
            if each.name == name:
                changes = [*each.metadata.get(WIDENED, ()), {"toType": kind, "fromType": each.type}]
                each = replace(each, type=kind, metadata={**each.metadata, WIDENED: changes})
            fields.append(each)
        return self.with_fields(fields)

    def with_features_of_types(self) -> Definition:
        """Return it with the features that the types of its columns need."""
        has_ntz = any(mentions(field.type, "timestamp_ntz") for field in self.fields)
        return self.with_protocol(Feature.TIMESTAMP_NTZ) if has_ntz else self

    def plain(self) -> Definition:
        """Return it without column mapping and type widening, for data files with these names and types."""
        own = (PHYSICAL_NAME, COLUMN_ID, WIDENED)
        fields = (
            replace(each, metadata={key: value for key, value in each.metadata.items() if key not in own})
            for each in self.fields
        )
        enabled = (_MAPPING, MAX_COLUMN_ID, Feature.TYPE_WIDENING.value[0])
        properties = {key: value for key, value in self.configuration.items() if key not in enabled}
        legacy = {name for _, names in _LEGACY_FEATURES for name in names}
        writes = set(self.protocol.get("writerFeatures") or ()) - legacy - _REMOVABLE
        protocol: dict[str, Any] = dict(_PLAIN)
        if writes:
            always = _LEGACY_FEATURES[0][1]
            protocol |= {"minWriterVersion": _LISTED, "writerFeatures": sorted({*writes, *always})}
        if reads := writes & set(self.protocol.get("readerFeatures") or ()):
            protocol |= {"minReaderVersion": _LISTED_BY_READERS, "readerFeatures": sorted(reads)}
        found = self.with_fields(fields).with_metadata(configuration=properties)
        return replace(found, protocol=protocol).with_features_of_types()

    def with_protocol(self, *features: Feature | str) -> Definition:
        """Return it with features, given as such or by name, in its protocol; it keeps those that it has."""
        names = {each if isinstance(each, str) else _FEATURE_NAMES[each] for each in features}
        reader = int(self.protocol.get("minReaderVersion", 1))
        writer = int(self.protocol.get("minWriterVersion", 2))
        reads = set(self.protocol.get("readerFeatures") or ())
        writes = set(self.protocol.get("writerFeatures") or ())
        if writer < _LISTED:
            writes = {name for version, names in _LEGACY_FEATURES if version <= writer for name in names}
        if reader == 2:  # that of column mapping
            reads.add(_MAPPING_FEATURE)
        if names <= reads & writes:
            return self
        reads |= names
        protocol = {
            "minReaderVersion": _LISTED_BY_READERS,
            "minWriterVersion": _LISTED,
            "readerFeatures": sorted(reads),
            "writerFeatures": sorted(writes | names),
        }
        if reads == {_MAPPING_FEATURE}:
            protocol["minReaderVersion"] = 2
            del protocol["readerFeatures"]
        return replace(self, protocol=protocol)


def compact_json(value: Any) -> str:
    """Return JSON as the log has it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
