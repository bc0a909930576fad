"""The Spark settings of all jobs and commands.

`jars` writes them into the environment's Spark (`conf/spark-defaults.conf`), so that `spark-submit jobs/…`
needs no options; `session` sets them on the sessions that it builds. A `--conf` option, or the user's own
`spark-defaults.conf`, overrides them.
"""

# The log store that commits by Spark use, by the scheme of storage.root; only the driver commits. Delta's own
# stores can lose commits of two processes, but on HDFS, and let a job commit that has lost its lease.
LOG_STORES = {
    "file": "pgdelta.storage.LinkLogStore",
    "s3a": "pgdelta.storage.S3LogStore",
    "s3": "pgdelta.storage.S3LogStore",
    "hdfs": "pgdelta.storage.HdfsLogStore",
}


def log_store_setting(scheme: str) -> str:
    """Return the Spark setting that names the log store of a scheme."""
    return f"spark.delta.logStore.{scheme}.impl"


SPARK_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "3g",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    **{log_store_setting(scheme): name for scheme, name in LOG_STORES.items()},
    # timestamps in text without a zone are UTC on every host
    "spark.sql.session.timeZone": "UTC",
    # a micro-batch is small: Spark's 200 shuffle tasks, and Delta's 50 for a log, would cost more than its
    # work
    "spark.sql.shuffle.partitions": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    # every batch runs the same few hundred pieces of generated code: with Spark's 100 they evict each other
    # and are compiled again each time, which was a third of a batch's time
    "spark.sql.codegen.cache.maxEntries": "2000",
    # each table's thread has a pool of its own: the tasks of a large table do not take all cores
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Set on every session, also under spark-submit: correctness or speed depends on these.
RUNTIME_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "2",
    # every copy leaves an application id in bronze's log: with more than Delta's 100, checksum files omit all
    # offsets, and each read of one takes a Spark job over the log
    "spark.databricks.delta.setTransactionsInCrc.maxAllowed": "1000",
    # the source of a MERGE is a local checkpoint already
    "spark.databricks.delta.merge.materializeSource": "none",
    # Spark's default is INT96, which readers outside Spark read as nanoseconds, which end with the year 2262
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # the constraints that Spark infers from an expression over all columns grow exponentially with their
    # number: planning a table with 18 columns and no key never ended
    "spark.sql.constraintPropagation.enabled": "false",
    # apply's stream is only a signal: with this setting a filter that no row passes spares a micro-batch the
    # list, the plan and the compiled code of bronze's files
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true",
    # a damaged page fails the read instead of giving wrong values
    "parquet.page.verify-checksum.enabled": "true",
    # Parquet's writer first checks its memory after this many rows, later according to their size: 100 rows
    # of 2 MB, the default, had filled the memory
    "parquet.page.size.row.check.min": "1",
    "parquet.block.size.row.check.min": "1",
    # Spark replaces `${env:…}` in SQL by variables of the driver, passwords included: a column of such a name
    # would be named by the password
    "spark.sql.variable.substitute": "false",
}

# Set while few rows are written to a small table: planning again amid a query, several tasks, and compiling a
# whole stage of it take longer than they save.
SMALL_WRITE_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
}

# fatal, not error: pgdelta reports every failure that stops a run, and Spark logs the same failure at error
# level with its stack trace and sometimes a row's values. --debug shows more.
LOG4J_PROPERTIES = """\
rootLogger.level = ${env:PGDELTA_SPARK_LOG:-fatal}
rootLogger.appenderRef.stderr.ref = stderr
# without its own level this logger makes Spark announce, and use, WARN
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = ${env:PGDELTA_SPARK_LOG:-fatal}
# an error that ends the JVM, mostly out of memory, ends it at once with code 52, before pgdelta can report it
logger.end.name = org.apache.spark.util.SparkUncaughtExceptionHandler
logger.end.level = error
logger.end.additivity = false
logger.end.appenderRef.end.ref = end
appender.end.type = Console
appender.end.name = end
appender.end.target = SYSTEM_ERR
appender.end.layout.type = PatternLayout
appender.end.layout.pattern = pgdelta: Spark ended by %replace{%ex{1}}{(?s)[^a-zA-Z.].*}{}. Nothing is lost. \
Run again, after an OutOfMemoryError with a larger spark.driver.memory.%n
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
