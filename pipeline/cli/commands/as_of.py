"""`pgdelta as-of`: which version of each silver table shows one commit."""

from pipeline.cli.command import command, option
from pipeline.cli.options import config_option, output_options, refuse_both, tables_option
from pipeline.cli.output import finish, load_config

_POINT = "Point in time"


@command(
    "as-of",
    section="Observe",
    short_help="Show which table versions show one commit.",
    examples=[
        ("queries of the newest state that all tables share", "pgdelta as-of --config conf/pipeline.yaml"),
        (
            "the end of January",
            "pgdelta as-of --config conf/pipeline.yaml --timestamp 2026-01-31T23:59:59Z",
        ),
        (
            "which tables changed since the last answer, whose cursor this is?",
            "pgdelta as-of --config conf/pipeline.yaml --json \\\n"
            "    --since 16/B374D848@2026-01-31T23:59:59.120000Z",
        ),
    ],
    exit_codes={1: "failed, or the version of a table is gone"},
)
@config_option
@option("--lsn", group=_POINT, metavar="X/Y", help="Use the newest manifest at or before this LSN.")
@option(
    "--timestamp",
    group=_POINT,
    metavar="TIME",
    help="Use the newest manifest committed at or before this time, such as 2026-01-31T12:00:00Z. Without a "
    "zone it is UTC.",
)
@option(
    "--since",
    group=_POINT,
    metavar="CURSOR",
    help="Show which tables changed after this LSN, or after the `cursor` of an earlier --json, and how many "
    "rows did.",
)
@tables_option("Show these tables only.")
@output_options
def as_of(
    config: str,
    lsn: str | None,
    timestamp: str | None,
    since: str | None,
    tables: tuple[str, ...],
    as_json: bool,
) -> int:
    """Print the LSN and commit time of a manifest, and for each silver table the version that shows it, with
    a query to paste. Tables that are read so agree: a transaction is visible in all of them or in none.

    A table that was behind at that LSN is named without a query.
    """
    refuse_both({"--lsn": lsn is not None, "--timestamp": timestamp is not None})
    loaded = load_config(config)
    from pipeline.reading.as_of import read_silver

    found = read_silver(loaded, lsn=lsn, timestamp=timestamp, globs=tables, since=since)
    return finish(found, as_json=as_json)
