"""`pgdelta init`: a configuration file for a server, and what is left to do there."""

import sys

import click

from pipeline.cli.arrow import use_lean_arrow
from pipeline.cli.command import command, flag, option
from pipeline.cli.options import output_options, tables_option
from pipeline.cli.output import show
from pipeline.errors import ConfigError
from pipeline.units import format_count

_FILE = "File"
_ALL = "*.*"


@command(
    "init",
    section="Set up",
    short_help="Write a configuration file for a server.",
    examples=[
        ("answer a few questions", "pgdelta init"),
        (
            "without questions, for a script",
            "pgdelta init --yes --conninfo 'host=db dbname=shop user=pgdelta' \\\n"
            "    --output conf/shop.yaml",
        ),
        (
            "for a role that the DBA has yet to create",
            "pgdelta init --yes --conninfo 'host=db dbname=shop' --role pgdelta \\\n    --sql dba.sql",
        ),
        ("only some tables", "pgdelta init --table 'sales.*' --table public.customers"),
    ],
    exit_codes={0: "the file is written; what is left to do is printed"},
)
@option(
    "--conninfo",
    group="Source",
    metavar="TEXT",
    help="The server: libpq keywords or a URI, without a password (default: libpq's environment).",
)
@option(
    "--role",
    group="Source",
    metavar="NAME",
    help="Role of the pipeline, which need not exist yet (default: that of the connection).",
)
@tables_option("Replicate these tables only (default: all that have a replica identity).")
@option("--pipeline", group=_FILE, metavar="NAME", help="Name of the pipeline (default: after the database).")
@option("--root", group=_FILE, metavar="PATH", help="The lake (default: the folder lake here).")
@option(
    "--output",
    group=_FILE,
    metavar="FILE",
    type=click.Path(),
    help="The file to write, which must not exist (default: NAME.yaml).",
)
@option(
    "--sql",
    group=_FILE,
    metavar="FILE",
    type=click.Path(),
    help="Write the SQL for the DBA to this file, which must not exist (default: print it).",
)
@flag("--yes", group=_FILE, help="Ask nothing: use the options and the defaults.")
@output_options
def init(
    conninfo: str | None,
    role: str | None,
    tables: tuple[str, ...],
    pipeline: str | None,
    root: str | None,
    output: str | None,
    sql: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Read what a server has (tables, sizes, replica identities, rights, settings), write a commented
    configuration file for it, estimate the initial copy, and print what is left to do there, as SQL for the
    DBA.

    Nothing is changed at the server. For the estimate, rows of the largest tables are read for about two
    seconds, if the role of the connection may read them. Tables without a replica identity are left out,
    because UPDATE and DELETE would fail on them at the source once they are published.
    """
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("Questions need a terminal. Add --yes to use the options and the defaults.")
    use_lean_arrow()
    from pipeline.operate.init import (
        check_root,
        choose_tables,
        read_source,
        refuse_existing,
        suggest_name,
        write_configuration,
    )
    from pipeline.operate.init_file import Choices

    def ask(question: str, given: str | None, default: str) -> str:
        return (given or default) if yes or given is not None else _prompt(question, default)

    for path, name in ((output, "--output"), (sql, "--sql")):
        if path is not None:
            refuse_existing(path, name)
    server = ask("Connection, libpq keywords or a URI", conninfo, "")
    facts = read_source(server, role)
    if not yes:
        click.echo(
            f"PostgreSQL {facts.version}, {format_count(len(facts.tables), 'table')} in this "
            "database, wal_level"
            f" {facts.wal_level}",
            err=True,
        )
    name = ask("Name of the pipeline", pipeline, suggest_name(facts))
    globs = tables or tuple(ask("Tables, as schema.table globs with spaces between", None, _ALL).split())
    globs = () if globs == (_ALL,) else globs
    selection = choose_tables(facts, globs)
    lake = check_root(ask("Folder of the lake", root, "lake"))
    file = ask("File to write", output, f"{name}.yaml")
    report = write_configuration(Choices(name, server, lake, file), facts, selection)
    show(report if sql is None else report.with_script(sql), as_json=as_json)
    return 0


def _prompt(question: str, default: str) -> str:
    """Return the answer to a question, the default for an empty one."""
    shown = f" [{default}]" if default else " [libpq's environment]"
    try:
        answer: str = click.prompt(f"{question}{shown}", default=default, show_default=False, err=True)
    except click.Abort:
        raise ConfigError("The questions were not answered. Add --yes to use the defaults.") from None
    return answer.strip()
