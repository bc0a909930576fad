"""Apply once what is pending, held tables included, the guards of named tables lifted if confirmed.

This is `pgdelta apply --table`: one batch without Spark's stream, under the lock that every apply holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from pipeline.apply.applier import Applier
from pipeline.apply.status_writer import StatusWriter
from pipeline.config.config import Config
from pipeline.delta.locks import lock_apply
from pipeline.delta.spark.session import start_session
from pipeline.errors import ConfigError
from pipeline.progress import ApplyProgress, ApplySummary
from pipeline.table_name import match_tables


def apply_tables(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    confirms: bool = False,
    spark: SparkSession | None = None,
    progress: ApplyProgress | None = None,
) -> ApplySummary:
    """Apply all that bronze holds, once; tables that globs do not name are applied along with the others.

    With `confirms` the guards of the tables that globs name are lifted. Raise ConfigError if a glob is not
    valid or no table matches.
    """
    applier = Applier(spark or start_session(f"pgdelta apply {config.pipeline}"), config, progress)
    prepare(applier, globs, confirms=confirms)
    if applier.bronze.changes.exists():
        with lock_apply(applier.lake):
            applier.apply_pending()
            StatusWriter(applier, config).write(always=True)
    return applier.summary


def prepare(applier: Applier, globs: Sequence[str] | None, *, confirms: bool) -> None:
    """Lift the guards of the tables that globs name, if confirmed; raise ConfigError if none matches."""
    matches = match_tables(globs)
    if confirms and not globs:
        raise ConfigError("--confirm needs --table, which names the tables whose guards it lifts.")
    if globs and applier.bronze.changes.exists():
        known = set(applier.records.tables.read())
        if applier.bronze.relations.exists():
            known |= set(applier.bronze.table_names())
        if not any(map(matches, known)):
            raise applier.lake.no_match()
    if confirms:
        applier.confirm(matches)
