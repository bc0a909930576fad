"""`pgdelta setup`: prepare the Spark of this environment."""

from pipeline.cli.command import command, flag
from pipeline.cli.options import debug_option


@command(
    "setup",
    section="Set up",
    short_help="Fetch what Spark needs into this environment.",
    examples=[
        ("after pip install pgdelta", "pgdelta setup"),
        ("for a lake on S3 too", "pgdelta setup --s3"),
    ],
)
@flag("--s3", group="Spark", help="Fetch Hadoop's client for S3 too (12 MB).")
@debug_option
def setup(s3: bool) -> int:
    """Fetch Delta's JARs from Maven Central into the pyspark of this environment, compile the log store, and
    write Spark's settings, so that `spark-submit` of this environment needs no options. Archive Spark's
    classes (a minute, 200 MB), so that Spark starts sooner.

    What is there already stays as it is. Without this command, the first command that starts Spark does the
    same, but for the archive. A Spark outside of this environment is never changed.
    """
    from pipeline.delta.spark.jars import prepare_environment

    for change in prepare_environment(with_s3=s3) or ["everything is in place"]:
        print(change, flush=True)
    return 0
