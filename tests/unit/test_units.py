"""Sizes, durations, counts, rates and shares as people read them."""

import re

from pipeline.units import (
    format_byte_rate,
    format_count,
    format_duration,
    format_names,
    format_row_rate,
    format_share,
    format_size,
)
from tests.support.sources import FILES

MORE_THAN_ONE = (
    "if len(self.lives) > 1",
    "{len(names)} tables match",
    "--table matches {len(names)} tables",
    "if len(losses) > 1",
    "for rows in",
)
"""Parts of lines whose count is never 1, or that write 1 themselves."""


def test_sizes_have_the_largest_unit_that_fits() -> None:
    sizes = {
        0: "0 B",
        1023: "1023 B",
        1024: "1 KiB",
        3 << 19: "1.5 MiB",
        3 << 39: "1.5 TiB",
        1 << 52: "4096.0 TiB",
    }
    assert {count: format_size(count) for count in sizes} == sizes


def test_durations_have_at_most_two_units() -> None:
    durations = {
        0.42: "0.4 s",
        3.25: "3.2 s",
        59.6: "60 s",
        68: "1 min 08 s",
        90: "1 min 30 s",
        3599.7: "1 h 00 min",
        7200: "2 h 00 min",
        90_061: "25 h 01 min",
        86_400 * 2: "2.0 days",
        86_400 * 3.5: "3.5 days",
    }
    assert {seconds: format_duration(seconds) for seconds in durations} == durations


def test_a_count_that_is_printed_has_its_noun_from_one_function() -> None:
    counted = re.compile(r"\{[^{}\"]*(?:(?:len\(|count\b|rows\b)[^{}\"]*|:,)\} (?:[a-z]+ )?[a-z]+s\b")
    verb = re.compile(r"format_count\([^{}]*\)\} (?:are|were|have|differ|match)\b")
    found = [
        f"{path}: {line.strip()}"
        for path in FILES
        for line in path.read_text(encoding="utf-8").splitlines()
        if (counted.search(line) and "format_count" not in line) or verb.search(line)
    ]
    assert [line for line in found if not any(each in line for each in MORE_THAN_ONE)] == []


def test_only_a_whole_is_100_percent() -> None:
    assert [format_share(share) for share in (0.0, 0.999, 1.0)] == ["0%", "99%", "100%"]


def test_counts_and_rates_have_their_nouns() -> None:
    assert [format_count(count, "row") for count in (0, 1, 12_300)] == ["0 rows", "1 row", "12,300 rows"]
    assert [format_count(count, "row", "is", "are") for count in (1, 2)] == ["1 row is", "2 rows are"]
    assert (format_row_rate(180_000.4), format_byte_rate(43_000.0)) == ("180,000 rows/s", "42 KiB/s")


def test_of_many_names_only_the_first_ones_are_written() -> None:
    assert format_names(["b", "a"]) == "b, a"
    assert format_names(range(1006)) == "0, 1, 2, 3, 4 and 1,001 more"
    assert format_names("abc", 2) == "a, b and 1 more"
