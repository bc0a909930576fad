"""Definition of a metric: name, kind, help text, and how it is read from the summaries of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

if TYPE_CHECKING:
    from pipeline.postgres.replication.slot_status import SourceWal
    from pipeline.progress import ApplySummary, IngestSummary

PREFIX = "pgdelta_"
TABLE_LABELS = ("schema", "table")
HOLDER_LABELS = ("pid", "user", "gid", "standby_slot")

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily


class Durations(NamedTuple):
    """The value of a summary: how many there were, and how long they took together."""

    number: int
    seconds: float


# Values by the labels besides `pipeline`, in their order.
Samples: TypeAlias = Mapping[tuple[str, ...], float | Durations]


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one scrape reads: each summary if its job runs, and the WAL of the source if it is known."""

    started: float
    ingest: IngestSummary | None
    apply: ApplySummary | None
    read_source: Callable[[], SourceWal | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; its name has no prefix, its labels are those besides `pipeline`."""

    kind: Literal["counter", "gauge", "summary"]
    name: str
    help: str
    read: Callable[[Scrape], Samples]
    labels: tuple[str, ...] = ()

    def family(self, pipeline: str, samples: Samples) -> Family:
        """Return the samples as prometheus_client has them."""
        name, labels = f"{PREFIX}{self.name}", ("pipeline", *self.labels)
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "summary": SummaryMetricFamily}
        family: Family = kinds[self.kind](name, self.help, labels=labels)
        for values, value in samples.items():
            texts = [label_text(text) for text in (pipeline, *values)]
            if isinstance(family, SummaryMetricFamily):
                assert isinstance(value, Durations)
                family.add_metric(texts, value.number, value.seconds)
            else:
                assert not isinstance(value, Durations)
                family.add_metric(texts, value)
        return family


def label_text(text: str) -> str:
    """Return a text that UTF-8 can encode: a name may hold bytes of another encoding as lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
