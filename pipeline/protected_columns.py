"""The columns of a table that are left out, hashed or masked, as bronze and the registry record them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

EXCLUDE, HMAC_SHA256, MISSING = "exclude", "hmac-sha256", "missing"
NULL_MASK, LAST4_MASK, TEXT_MASK = "mask null", "mask last4", "mask text "


@dataclass(frozen=True, slots=True)
class ProtectedColumn:
    """A column with a rule, in one relation version; `configured_name` is that of the configuration.

    `rule` is `exclude`, `hmac-sha256 <fingerprint of the key>`, `mask last4`, `mask null`, `mask text <text>`
    or, for a column that the configuration names and the table does not have, `missing`; it has no name.
    """

    name: str | None
    configured_name: str
    attribute_number: int | None
    rule: str


def read_protected(rows: Iterable[Mapping[str, Any]] | None) -> tuple[ProtectedColumn, ...]:
    """Return the columns of a row of `bronze/relations` or of the registry."""
    return tuple(ProtectedColumn(**row) for row in rows or ())
