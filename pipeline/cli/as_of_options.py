"""What `pgdelta as-of` takes on its command line, and what its help teaches."""

import argparse

from pipeline.cli.options import add_config

AS_OF = """\
Print, for the newest manifest or for the one that is asked for, its LSN and commit time, and for each
silver table the version that shows it, with a query to paste: read so, tables agree, and a transaction
is seen in all of them or in none. A table that was behind is named without a query.
Exit code 1 where the version of a table is gone.
"""


def add_as_of(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--lsn", metavar="X/Y", help="as of the newest manifest at or before this position")
    place.add_argument(
        "--timestamp",
        metavar="T",
        help="as of the newest manifest that was committed at or before this time, such as "
        "2026-01-31T12:00:00Z; UTC where it names no zone",
    )
