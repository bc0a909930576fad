"""Write a support archive: the configuration and state of a pipeline, without row values and secrets.

Of the lake's tables, only columns that have names, numbers, states and sentences are read. Of data files,
only counts and sizes are read, and of logs, only lines in the format of `--log json`. Then known secrets are
replaced in every text. Nothing is changed. If a part cannot be read, the archive has a sentence that says
why.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sys
import tarfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.config.scalars import read_public_keywords, read_secrets
from pipeline.delta.spark.jars import check_java
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import ConfigError, describe_error
from pipeline.metadata.registry import Records
from pipeline.report.status import read_status
from pipeline.units import format_count, format_size, format_time

_PACKAGES = (
    *("pyspark", "delta-spark", "deltalake", "duckdb", "pyarrow", "pandas", "psycopg", "psycopg-binary"),
    *("pydantic", "PyYAML", "click", "rich", "prometheus-client"),
)
OWN_SHAPES = {
    "bronze": ("changes", "relations", "prepared", "copies", "bases"),
    "_pgdelta": (
        *("tables", "manifests", "events", "misfits", "status", "requests", "pauses", "maintenance"),
        *("reconciliations", "differences", "erasures", "catalog", "catalog_entries", "comments"),
        *("alerts", "format", "fingerprints"),
    ),
}
"""The tables that are not silver and whose shape the capsule has."""
# What is read of tables whose rows have no values of the source in these columns.
_ROWS = {
    "events": ("schema_name", "table_name", "lsn", "kind", "sentence", "recorded_at"),
    "status": (
        *("schema_name", "table_name", "state", "applied_lsn", "captured_lsn", "lag_bytes", "lag_seconds"),
        *("silver_version", "misfits", "sentence", "recorded_at"),
    ),
    "pauses": ("schema_name", "table_name", "lsn", "paused_at"),
    "alerts": (
        *("rule", "kind", "schema_name", "table_name", "sentence", "began_at", "sent_at", "ended_at"),
    ),
    "maintenance": (
        *("table_name", "maintained_at", "version", "files_before", "files_after", "bytes", "seconds"),
        *("is_failed", "sentence"),
    ),
    "reconciliations": (
        *("schema_name", "table_name", "verdict", "lsn", "silver_version", "applied_lsn", "pending"),
        *("source_rows", "silver_rows", "missing", "surplus", "changed", "is_whole", "columns", "sentence"),
        *("seconds", "recorded_at"),
    ),
    "requests": ("request_id", "schema_name", "table_name", "requested_at"),
    "format": ("version", "release", "recorded_at"),
}
_MAX_ROWS = 5_000
_MAX_LOG_BYTES = 8 << 20
_METRICS_SECONDS = 10.0
_SECRET_NAME = re.compile(r"PASS|SECRET|TOKEN|CREDENTIAL|KEY|CONNINFO|DSN|DATABASE_URL", re.IGNORECASE)
_SHORTEST_SECRET = 6
_README = """\
A capsule of the pipeline {pipeline}, written by pgdelta {version} at {time}.

It has names of tables and columns, types, counts, sizes, LSNs, states and sentences. It has no values of
rows, no keys, no passwords, and no values of the environment. Look through it before you send it.

"""


@dataclass(frozen=True, slots=True)
class Capsule:
    """The file that was written, and the names and sizes of its parts in bytes."""

    file: str
    size: int
    parts: Mapping[str, int]
    failures: Sequence[str]

    def lines(self) -> list[str]:
        return [
            f"wrote {self.file}: {format_count(len(self.parts), 'part')}, {format_size(self.size)}",
            *(f"  {name}: {format_size(size)}" for name, size in self.parts.items()),
            *(f"not read: {sentence}" for sentence in self.failures),
            "It has no values of rows and no secrets. Look through it before you send it.",
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "bytes": self.size,
            "parts": dict(self.parts),
            "failures": list(self.failures),
        }


def write_capsule(
    config: Config,
    output: str | None = None,
    *,
    logs: Sequence[str] = (),
    metrics: tuple[str, int] | None = None,
    is_offline: bool = False,
) -> Capsule:
    """Gather the parts and write the file, which must not exist; raise ConfigError if it does.

    `logs` are files with lines of `--log json`; `metrics` is where a job serves its metrics.
    """
    now = datetime.now(timezone.utc)
    file = output or f"pgdelta-{config.pipeline}-{now:%Y%m%dT%H%M%SZ}.tar.gz"
    if os.path.lexists(file):
        raise ConfigError(f"{file}: The file exists, and is not replaced. Give --output another path.")
    failures: list[str] = []

    def part(name: str, read: Callable[[], object]) -> object:
        try:
            return read()
        except Exception as error:
            failures.append(f"{name}: {describe_error(error)}")
            return {"failed": failures[-1]}

    application = f"pgdelta capsule {config.pipeline}"
    lake = Lake(config.storage, application=application, verifies=False)  # what can be read, is
    found: dict[str, object] = {
        "versions.json": part("versions", versions),
        "configuration.json": part("configuration", lambda: public_configuration(config)),
        "status.json": part("status", lambda: read_status(config, is_offline=is_offline).as_json()),
        "tables.json": part("tables", lambda: list(_shapes(lake, config))),
        "misfits.json": part("misfits", lambda: _misfits(lake)),
    }
    for name, columns in _ROWS.items():
        found[f"_pgdelta/{name}.json"] = part(name, partial(_rows, lake, name, columns))
    for number, log in enumerate(map(Path, logs)):
        found[f"logs/{number}-{log.name}.jsonl"] = part(str(log), partial(_log_lines, log))
    if metrics is not None:
        found["metrics.txt"] = part("metrics", lambda: _read_metrics(*metrics))
    readme = _README.format(pipeline=config.pipeline, version=__version__, time=format_time(now))
    texts = {"README.txt": readme + "".join(f"not read: {sentence}\n" for sentence in failures)}
    texts |= {name: _text(content) for name, content in found.items()}
    secrets = known_secrets(config, os.environ)
    parts = {name: redact(text, secrets).encode() for name, text in texts.items()}
    _write(file, parts)
    return Capsule(
        file,
        os.path.getsize(file),
        {name: len(content) for name, content in parts.items()},
        [redact(sentence, secrets) for sentence in failures],
    )


def versions() -> dict[str, Any]:
    """Return the versions of what runs, and the size of this machine."""
    packages: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    try:
        java = str(check_java())
    except Exception as error:
        java = describe_error(error)
    return {
        "pgdelta": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "time_zone": time.tzname[0],
        "java": java,
        "packages": packages,
    }


def public_configuration(config: Config) -> dict[str, Any]:
    """Return the configuration without secrets, and without texts that replace values."""
    found = asdict(config)
    del found["_rules"]
    source, copying = found["source"], found["source"]["copying"]
    for section, key in ((source, config.source), (copying, config.source.copying)):
        section["conninfo"] = read_public_keywords(key.conninfo or "")
        section["password_command"] = _public_command(key.password_command)
    source["hash_key"] = config.source.hash_key and "set"
    found["alerts"]["webhook"] = config.alerts.webhook and "set"
    found["lineage"] |= {key: found["lineage"][key] and "set" for key in ("url", "api_key")}
    for target in found["catalog"]["targets"]:
        target["token"] = target["token"] and "set"
    found["storage"]["options"] = sorted(config.storage.options)  # some are credentials
    source["protocol"]["written"] = sorted(config.source.protocol.written)
    for rule, written in zip(found["tables"], config.tables, strict=True):
        del rule["columns"]["places"]
        rule["columns"]["mask"] = {
            name: mask if mask in (None, "last4") else "a text" for name, mask in written.columns.mask.items()
        }
        rule["properties"] = sorted(written.properties)
        rule["comment"] = written.comment and "set"
    return found


def known_secrets(config: Config, environ: Mapping[str, str]) -> list[str]:
    """Return the texts that no part may contain, the longest first."""
    found = {config.source.hash_key or "", config.alerts.webhook or ""}
    found |= {config.lineage.url or "", config.lineage.api_key or ""}
    found |= {target.token or "" for target in config.catalog.targets}
    for conninfo in (config.source.conninfo, config.source.copying.conninfo or ""):
        found |= set(read_secrets(conninfo))
    for values in (environ, config.storage.options):
        found |= {value for name, value in values.items() if _SECRET_NAME.search(name)}
    # Not a path, a number or a short word, which would be replaced in names and counts.
    is_secret = (
        len(text) >= _SHORTEST_SECRET and not text.isdigit() and "/" not in text[:1] for text in found
    )
    chosen = [text for text, chosen in zip(found, is_secret, strict=True) if chosen]
    escaped = [json.dumps(text)[1:-1] for text in chosen]
    return sorted({*chosen, *escaped}, key=len, reverse=True)


def redact(text: str, secrets: Collection[str]) -> str:
    """Return a text with each secret replaced."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _public_command(command: Sequence[str]) -> str | None:
    """Return the name of a program and how many arguments it has."""
    return f"{Path(command[0]).name} and {format_count(len(command) - 1, 'argument')}" if command else None


def _shapes(lake: Lake, config: Config) -> Iterator[dict[str, Any]]:
    """Yield the columns, counts and sizes of every table of the lake, from its log alone."""
    for room, names in OWN_SHAPES.items():
        for name in names:
            table = lake.table(room, name)
            if table.exists():
                yield {"table": f"{room}/{name}", **_shape(table)}
    bronze = Bronze(lake, config.pipeline)
    relations = bronze.source_relations().values() if bronze.relations.exists() else ()
    newest = {relation.name: relation for relation in sorted(relations, key=lambda each: each.lsn)}
    registered = Records(lake).tables.read()
    for source in sorted({*registered, *newest}):
        relation, registration = newest.get(source), registered.get(source)
        shape: dict[str, Any] = {}
        if registration is not None:
            try:
                shape = _shape(lake.table_at(registration.path))
            except Exception as error:  # the others are read all the same
                shape = {"failed": describe_error(error)}
        yield {
            **source._asdict(),
            "mode": registration and registration.mode,
            "source": relation
            and {
                "lsn": relation.lsn,
                "replica_identity": relation.replica_identity,
                "columns": [
                    {
                        "name": column.name,
                        "type_oid": column.type_oid,
                        "type_modifier": column.type_modifier,
                        "is_key": column.is_key,
                    }
                    for column in relation.columns
                ],
            },
            "silver": shape,
        }


def _shape(table: LakeTable) -> dict[str, Any]:
    snapshot = table.snapshot()
    adds = list(snapshot.files.values())
    counts = [json.loads(add["stats"]).get("numRecords") if add.get("stats") else None for add in adds]
    return {
        "version": snapshot.version,
        "files": len(adds),
        "bytes": sum(add["size"] for add in adds),
        "rows": None if None in counts else sum(counts),
        "features": dict(snapshot.protocol),
        "properties": sorted(snapshot.configuration),
        "columns": [{"name": field.name, "type": field.ddl} for field in table.schema().fields],
    }


def _misfits(lake: Lake) -> list[dict[str, Any]]:
    return [
        {**name._asdict(), "column": column, "policy": policy, "count": count}
        for name, columns in sorted(Records(lake).misfits.counts_by_policy().items())
        for column, policies in sorted(columns.items())
        for policy, count in sorted(policies.items())
    ]


def _rows(lake: Lake, name: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the newest rows of a table under `_pgdelta`, in some of its columns."""
    table = lake.table("_pgdelta", name)
    if not table.exists():
        return []
    has = {field.name for field in table.schema().fields}
    rows = table.rows([column for column in columns if column in has]).to_pylist()
    time = next((column for column in columns if column.endswith("_at") and column in has), None)
    if time is not None:
        rows.sort(key=lambda row: str(row[time]))
    return list(rows[-_MAX_ROWS:])


def _log_lines(path: Path) -> str:
    """Return the lines of `--log json` at the end of a file; all others are counted only."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _MAX_LOG_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    kept: list[str] = []
    counts: Counter[str] = Counter()
    for line in lines:
        try:
            found = json.loads(line)
            is_event = isinstance(found, dict) and {"time", "event", "pipeline", "command"} <= found.keys()
        except ValueError:
            is_event = False
        counts["kept" if is_event else "left out"] += 1
        if is_event:
            kept.append(line)
    return "\n".join([*kept, json.dumps({"lines": dict(counts)}), ""])


def _read_metrics(host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else host
    with urllib.request.urlopen(f"http://{name}:{port}/metrics", timeout=_METRICS_SECONDS) as answer:
        content: bytes = answer.read(_MAX_LOG_BYTES)
    return content.decode("utf-8", "replace")


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n"


def _write(file: str, parts: Mapping[str, bytes]) -> None:
    """Write the archive for its user alone; raise ConfigError if that is not possible."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{file}: Cannot write the file ({error.strerror}). Give --output another path."
        ) from None
    folder = Path(file).name.removesuffix(".tar.gz")
    with os.fdopen(handle, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in parts.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
            archive.addfile(member, io.BytesIO(content))
