"""The columns of a table that are left out, hashed or masked, as bronze and the registry record them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.protocol.pg_types import Int4

EXCLUDE, HMAC_SHA256 = "exclude", "hmac-sha256"
MISSING, POSSIBLE = "missing", "possible"
NULL_MASK, LAST4_MASK, TEXT_MASK = "mask null", "mask last4", "mask text "


@dataclass(frozen=True, slots=True)
class ProtectedColumn:
    """A column with a rule, in one relation version; `configured_name` is that of the configuration.

    `rule` is `exclude`, `hmac-sha256 <fingerprint of the key>`, `mask last4`, `mask null` or `mask text
    <text>`. A column without a name is none of the version's: one that the configuration names and the table
    does not have (`missing`), or an attribute number that the configured column may have had (`possible`). A
    column with a name, and without an attribute number, may be the configured one.
    `type_oid` and `type_modifier` are those of the source, beneath domains, if they are known and the values
    depend on their texts (hashed or `mask last4`): the relation has the type text.
    """

    name: str | None
    configured_name: str
    attribute_number: Int4 | None
    rule: str
    type_oid: int | None = None
    type_modifier: Int4 | None = None

    @property
    def is_guess(self) -> bool:
        """Whether the column has the rule because it may be the configured column under another name."""
        return self.name is not None and self.attribute_number is None and self.name != self.configured_name

    @property
    def type(self) -> tuple[int, int] | None:
        """The type at the source, None if it is not known or values do not depend on it."""
        if self.type_oid is None or self.type_modifier is None:
            return None
        return self.type_oid, self.type_modifier

    def is_same(self, name: str | None, number: int | None) -> bool:
        """Return whether a column is this one: by its number or, if one of the two is unknown, its name."""
        if number is None or self.attribute_number is None:
            return self.name == name
        return self.attribute_number == number


def find_protected(
    columns: Iterable[ProtectedColumn], name: str | None, number: int | None
) -> ProtectedColumn | None:
    """Return the protected column that is a column with a name and an attribute number."""
    return next((column for column in columns if column.is_same(name, number)), None)


def with_known_types(
    before: Sequence[ProtectedColumn], after: Iterable[ProtectedColumn]
) -> tuple[ProtectedColumn, ...]:
    """Return the columns of a version, with the types of the version before if its own are not known."""
    found = ((column, find_protected(before, column.name, column.attribute_number)) for column in after)
    return tuple(
        replace(column, type_oid=earlier.type_oid, type_modifier=earlier.type_modifier)
        if earlier is not None and earlier.rule == column.rule and column.type is None
        else column
        for column, earlier in found
    )
