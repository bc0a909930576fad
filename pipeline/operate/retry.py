"""Apply once more what was held, or write tables anew from bronze."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from pipeline.apply.applier import Applier
from pipeline.apply.manifest_entries import ManifestEntries
from pipeline.apply.status_writer import StatusWriter
from pipeline.config.config import Config
from pipeline.delta.locks import lock_apply
from pipeline.delta.spark.session import start_session
from pipeline.errors import ConfigError, report_error
from pipeline.progress import ApplySummary, TableState
from pipeline.table_name import TableName, match_tables


def run_retry(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    rewrites: bool = False,
    confirms: bool = False,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
) -> ApplySummary:
    """Apply all that bronze holds; with `rewrites` write the tables that globs name anew, or all of them.

    With `confirms` what waits for the tables that globs name is applied whatever their guards say. After
    `stop` no other table is written anew.
    """
    stop = stop or threading.Event()
    if globs and not (rewrites or confirms):
        raise ConfigError(
            "--table says which tables to write anew, or to confirm: add --rewrite or --confirm, or leave "
            "it out"
        )
    if confirms and not globs:
        raise ConfigError("--confirm lifts the guards of the tables that --table names: add it")
    matches = match_tables(globs)
    applier = Applier(spark or start_session(f"pgdelta retry {config.pipeline}"), config)
    if applier.bronze.changes.exists():
        with lock_apply(applier.lake):
            if confirms:
                _confirm(applier, matches)
            applier.apply_pending()
            if rewrites:
                _rewrite(applier, matches, stop)
            StatusWriter(applier, config).write(always=True)
    return applier.summary


def _confirm(applier: Applier, matches: Callable[[TableName], bool]) -> None:
    """Lift the guards of the tables that match."""
    if not any(map(matches, applier.records.tables.read())):
        raise applier.lake.no_match()
    applier.confirm(matches)


def _rewrite(applier: Applier, matches: Callable[[TableName], bool], stop: threading.Event) -> None:
    """Write the tables that match anew, each up to the newest manifest, and record which version shows it."""
    if (manifest := applier.manifest) is None:
        return
    registered = applier.records.tables.read()
    history = applier.bronze.copies.read()
    found = ManifestEntries(applier.lake, manifest, applier.path, applier.bronze.txn)
    entries = dict(found.before)
    for name in found.before:
        if stop.is_set():
            break
        if name not in registered or not matches(name) or name in applier.held_by_guards:
            continue  # bronze's history has what the guards hold back
        state = applier.summary.tables.setdefault(name, TableState(manifest.lsn))
        decision = applier.decisions.get(name)
        if decision is not None and decision.blocks_rebuild:
            state.held = decision.sentence  # bronze lacks rows of it, or the folder is another table's
            continue
        try:
            writer = applier.writer(name, history)
            since = found.recorded_version(name)
            written = writer.rebuild(applier.relations, registered[name], manifest.lsn)
            if not written.held:
                entries[name] = found.current(name, manifest.lsn, since)
        except Exception as error:  # the others are written all the same
            state.failure = report_error(error)
            continue
        state.held, state.failure, state.misfits = written.held, None, written.misfits
        if not written.held:
            state.applied = manifest.lsn
    applier.manifest = replace(manifest, entries=tuple(entries.values()))
    applier.manifests.record(applier.manifest)
