"""Rebuild silver tables from bronze, with the types and policies of the current configuration.

Pending changes are applied first (`apply_tables`, which `pgdelta apply --table` also runs). Then each table
is written from everything that bronze has of it, up to the LSN of the newest manifest, and a new manifest
records the new version. Readers see the previous rows until the commit of a table. Each command holds the
lock of apply, and retries held tables. Spark starts where only it can write a table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeline.apply.applier import Applier
from pipeline.apply.catalogs import Catalogs
from pipeline.apply.expected_versions import ManifestEntries
from pipeline.apply.status_writer import StatusWriter
from pipeline.config.config import Config
from pipeline.delta.locks import lock_apply
from pipeline.errors import ConfigError, report_error
from pipeline.progress import ApplyProgress, ApplySummary, TableState
from pipeline.silver.lake_facts import detached_tables, require_followed
from pipeline.silver.read.missing_tables import no_match
from pipeline.table_name import TableName, match_tables


def apply_tables(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    confirms: bool = False,
    progress: ApplyProgress | None = None,
) -> ApplySummary:
    """Apply all that bronze holds, once; tables that globs do not name are applied along with the others.

    With `confirms` the guards of the tables that globs name are lifted. Raise ConfigError if a glob is not
    valid or no table matches.
    """
    applier = Applier(None, config, progress)
    prepare(config, applier, globs, confirms=confirms)
    if applier.bronze.changes.exists():
        with lock_apply(applier.lake, config.pipeline):
            applier.apply_pending()
            StatusWriter(applier, config).write(always=True)
            Catalogs(config, applier).finish(threading.Event())
    return applier.summary


def prepare(config: Config, applier: Applier, globs: Sequence[str] | None, *, confirms: bool) -> None:
    """Lift the guards of the tables that globs name, if confirmed; raise ConfigError if none matches."""
    matches = match_tables(globs)
    if confirms and not globs:
        raise ConfigError("--confirm needs --table, which names the tables whose guards it lifts.")
    if globs and applier.bronze.changes.exists():
        known = set(applier.records.tables.read())
        if applier.bronze.relations.exists():
            known |= set(applier.bronze.table_names())
        if not any(map(matches, known)):
            raise no_match(applier.lake, config, globs)
    if confirms:
        applier.confirm(matches)


def run_rebuild(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    confirms: bool = False,
    stop: threading.Event | None = None,
) -> ApplySummary:
    """Apply what is pending, then rebuild the tables that globs name, or all of them.

    With `confirms` the guards of the tables that globs name are lifted; without, a table that its guards hold
    is left as it is. After `stop` no other table is begun. Raise ConfigError if a glob is not valid or no
    table matches.
    """
    stop = stop or threading.Event()
    applier = Applier(None, config)
    prepare(config, applier, globs, confirms=confirms)
    if applier.bronze.changes.exists():
        with lock_apply(applier.lake, config.pipeline, stop):
            applier.apply_pending()
            _rebuild(applier, match_tables(globs), stop, is_named=bool(globs))
            StatusWriter(applier, config).write(always=True)
    return applier.summary


def _rebuild(
    applier: Applier, matches: Callable[[TableName], bool], stop: threading.Event, *, is_named: bool
) -> None:
    """Rebuild the tables that match; raise ConfigError if they are named and all are detached."""
    manifest, end = applier.manifest, applier.bronze.captured_offset()
    if manifest is None or end is None:
        return
    registered = {name: table for name, table in applier.records.tables.read().items() if matches(name)}
    history = applier.bronze.copies.read()
    registry, decisions = applier.records.tables, applier.planner.decisions
    found = ManifestEntries(applier.lake, manifest, applier.planner.path, applier.bronze.txn, registry)
    entries = dict(found.before)
    applier.summary.rebuilt = rebuilt = []
    detached = detached_tables(applier.planner.config, history, registered, end)
    if is_named:
        require_followed(registered, detached)
    # a table that came back is in no manifest until its rows are those of its copy
    for name in sorted({*found.before, *decisions} & registered.keys() - detached.keys()):
        if stop.is_set():
            break
        if name in applier.tables.held_by_guards:
            continue  # bronze also holds the changes that the guards hold back
        state = applier.summary.tables.setdefault(name, TableState(manifest.lsn))
        decision = decisions.get(name)
        if decision is not None and decision.blocks_rebuild:
            # bronze lacks rows of it, or the folder is another table's; that it is paused is shown already
            state.held = None if state.paused else decision.sentence
            continue
        if (excess := applier.planner.find_excess(name, manifest.lsn)) is not None:
            state.held = excess
            continue
        try:
            writer = applier.tables.writer(name, history)
            since = found.recorded_version(name)
            written = writer.rebuild(applier.planner.relations, registered[name], manifest.lsn)
            if not written.held:
                shared = applier.shown.sharing.share(name, TableState(manifest.lsn))
                entry = found.current(name, manifest.lsn, since, is_behind=shared.is_behind)
                entries[name], written = entry, replace(written, held=shared.held)
        except Exception as error:  # the others are written all the same
            state.failure = report_error(error)
            continue
        state.held, state.failure, state.waits, state.misfits = written.held, None, None, written.misfits
        if not written.held:
            state.applied = manifest.lsn
            rebuilt.append(name)
    applier.shown.newest = replace(manifest, entries=tuple(entries.values()))
    applier.shown.record_newest()
