"""Prometheus' text format, version 0.0.4: families of samples as text. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value under its labels; `suffix` is what a summary appends to its name (`_sum`, `_count`)."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name, of one kind and with one line of help."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    help: str
    samples: tuple[Sample, ...]


def render(families: Iterable[Family]) -> str:
    """Return the families that have samples as text, each line ended."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_escape(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += (_line(family.name, sample) for sample in family.samples)
    return "".join(f"{line}\n" for line in lines)


def _line(name: str, sample: Sample) -> str:
    pairs = ",".join(f'{label}="{_quoted(value)}"' for label, value in sample.labels.items())
    labels = f"{{{pairs}}}" if pairs else ""
    return f"{name}{sample.suffix}{labels} {_number(sample.value)}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escape(text).replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # an LSN prints as one otherwise
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
