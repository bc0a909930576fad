"""Decide which small files of a table are merged. Pure.

A merge writes its files again, so one that was merged before waits until enough has been added to it: each
row is written again about as often as the logarithm of its table's size, and the number of files stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

_ALWAYS_MERGED = 256 << 10  # bytes of a file that is cheap to write again
_MAX_AHEAD = 2  # a file waits while it is larger than so many times all that would be merged with it


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """When files are merged: at least `few_files` files below `small_file` bytes.

    A merged file has about `merged_file` bytes at most. One that `waits` is not merged again until enough was
    added.
    """

    few_files: int = 20
    small_file: int = 16 << 20
    merged_file: int = 64 << 20
    waits: bool = True


@dataclass(frozen=True, slots=True)
class SizedFile:
    """A file by its key in the table's version, and its bytes; one that is not `movable` is never merged."""

    key: str
    size: int
    movable: bool = True


Groups = list[tuple[str, ...]]
"""Keys of files; those of one group become one file."""


def plan_in_order(files: Iterable[SizedFile], limits: MergeLimits) -> Groups:
    """Return the groups of neighbours that are merged, for files in the order of their rows.

    No group reaches over a file that is not merged, so the merged files are in order too.
    """
    groups: Groups = []
    for is_small, run in groupby(files, lambda file: _is_small(file, limits)):
        if is_small:
            groups += _groups(_without_large_ahead(list(run), limits), limits)
    return groups


def plan_in_any_order(files: Iterable[SizedFile], limits: MergeLimits) -> Groups:
    """Return the groups that are merged of files whose order does not matter, in the order given."""
    small = [file for file in files if _is_small(file, limits)]
    by_size = sorted(small, key=lambda file: file.size, reverse=True)
    chosen = {file.key for file in _without_large_ahead(by_size, limits)}
    return _groups([file for file in small if file.key in chosen], limits)


def _is_small(file: SizedFile, limits: MergeLimits) -> bool:
    return file.movable and file.size < limits.small_file


def _without_large_ahead(run: Sequence[SizedFile], limits: MergeLimits) -> Sequence[SizedFile]:
    """Return a run without the files at its head that wait until more is behind them."""
    if not limits.waits:
        return run
    rest = sum(file.size for file in run)
    for number, file in enumerate(run):
        rest -= file.size
        if file.size <= max(_ALWAYS_MERGED, _MAX_AHEAD * rest):
            return run[number:]
    return ()


def _groups(run: Sequence[SizedFile], limits: MergeLimits) -> Groups:
    if len(run) < max(2, limits.few_files):
        return []
    groups: list[list[str]] = [[]]
    size = 0
    for file in run:
        if groups[-1] and size + file.size > limits.merged_file:
            groups.append([])
            size = 0
        groups[-1].append(file.key)
        size += file.size
    return [tuple(group) for group in groups if len(group) > 1]
