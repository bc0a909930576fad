"""What every command takes that is about one pipeline."""

import argparse
import os


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, which PGDELTA_CONFIG stands in for: what sentences tell to run, runs as it is told."""
    given = os.environ.get("PGDELTA_CONFIG")
    parser.add_argument(
        "--config",
        required=not given,
        default=given,
        metavar="FILE",
        help="the pipeline's YAML file; PGDELTA_CONFIG in the environment stands in for it",
    )
