"""Prometheus' text format 0.0.4, character by character."""

from __future__ import annotations

import math

from pipeline.protocol.lsn import LSN
from pipeline.report.metrics import Family, Sample, render


def test_families_are_rendered_with_help_type_and_samples() -> None:
    families = [
        Family("a_total", "counter", "All of it.", (Sample(3), Sample(2.5, {"t": "x", "u": "y"}))),
        Family("none", "gauge", "Has no sample.", ()),
        Family("s", "summary", "Two.", (Sample(1.5, {"p": "q"}, "_sum"), Sample(2, {"p": "q"}, "_count"))),
    ]
    assert render(families) == (
        "# HELP a_total All of it.\n"
        "# TYPE a_total counter\n"
        "a_total 3\n"
        'a_total{t="x",u="y"} 2.5\n'
        "# HELP s Two.\n"
        "# TYPE s summary\n"
        's_sum{p="q"} 1.5\n'
        's_count{p="q"} 2\n'
    )
    assert render([]) == ""


def test_what_has_a_meaning_in_the_format_is_escaped() -> None:
    sample = Sample(1, {"table": 'a"b\\c\nd{}=,#'})
    [help_line, _, line] = render([Family("m", "gauge", 'say "x"\\\nmore', (sample,))]).splitlines()
    assert help_line == '# HELP m say "x"\\\\\\nmore'
    assert line == 'm{table="a\\"b\\\\c\\nd{}=,#"} 1'


def test_numbers_are_those_of_go() -> None:
    values = (LSN(0x16B374D848), True, 1e300, -0.5, math.nan, math.inf, -math.inf, 1763812345.123456)
    lines = render([Family("m", "gauge", "x", tuple(map(Sample, values)))]).splitlines()[2:]
    assert [line.split(" ")[1] for line in lines] == [
        *("97500059720", "1", "1e+300", "-0.5", "NaN", "+Inf", "-Inf", "1763812345.123456"),
    ]
