"""Fingerprint rows: how many there are, and the sum of their hashes.

Pure. A sum depends on no order and counts equal rows, and sums of parts add up to that of the whole.
The hash of a row is the MD5 of its values' texts; `docs/reference/fingerprint.md` defines it for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_MODULUS = 1 << 60


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The number of rows, and two sums modulo 2^60, of digits 1 to 15 and 17 to 31 of their hashes."""

    rows: int = 0
    first: int = 0
    second: int = 0

    @staticmethod
    def of(rows: int, first: int, second: int) -> Fingerprint:
        """Return the fingerprint of so many rows, given sums of any size."""
        return Fingerprint(int(rows), int(first) % _MODULUS, int(second) % _MODULUS)

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint.of(self.rows + other.rows, self.first + other.first, self.second + other.second)

    def __str__(self) -> str:
        return f"{self.first:015x}{self.second:015x}"


def total(fingerprints: Iterable[Fingerprint]) -> Fingerprint:
    """Return the fingerprint of all rows."""
    return sum(fingerprints, Fingerprint())
