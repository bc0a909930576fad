"""The statistics of a data file, from all of its rows at once."""

import pyarrow as pa

from pipeline.delta.statistics import Statistics


def statistics_of(rows: pa.Table) -> str:
    """Return the statistics of a file with these rows as the log has them, keyed as the columns are."""
    statistics = Statistics(rows.column_names)
    statistics.add(rows)
    return statistics.json()
