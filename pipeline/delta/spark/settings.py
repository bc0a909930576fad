"""The Spark settings that every run of the pipeline needs, in one place.

Two readers: `jars` writes them into the environment's own Spark (`conf/spark-defaults.conf`), so that
`spark-submit jobs/…` needs nothing on its line; `session` sets them on the sessions that it builds itself. A
`--conf` on the line, or a `spark-defaults.conf` of the user's own, overrides them.
"""

DELTA_VERSION = "4.4.0"
DELTA_JARS = (
    ("io.delta", "delta-spark_4.2_2.13", DELTA_VERSION),
    ("io.delta", "delta-storage", DELTA_VERSION),
)

# for roots on a file system that this machine mounts; only the driver commits
LOG_STORE_SETTING = "spark.delta.logStore.file.impl"
LOG_STORE = "pgdelta.storage.LinkLogStore"

SPARK_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "3g",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    LOG_STORE_SETTING: LOG_STORE,
    # timestamps without a zone in text are UTC, on every host
    "spark.sql.session.timeZone": "UTC",
    # a micro-batch is small: Spark's 200 shuffle tasks and Delta's 50 for a log would cost more than the work
    "spark.sql.shuffle.partitions": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    # every pass runs the same few hundred pieces of generated code: with Spark's 100 they push each other out
    # of the cache and are compiled again each time, which took a third of a pass
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# What a session of the pipeline sets on itself, whoever started it: correctness or speed depends on these.
RUNTIME_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.snapshotPartitions": "2",
    # every copy leaves an application id in bronze's log: beyond Delta's 100 of them checksum files leave all
    # positions out, and each look at one takes a Spark job over the log
    "spark.databricks.delta.setTransactionsInCrc.maxAllowed": "1000",
    # the source of a MERGE is a local checkpoint already
    "spark.databricks.delta.merge.materializeSource": "none",
    # INT96 is Spark's default: readers outside Spark take it for nanoseconds, which end with the year 2262
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # what Spark infers of an expression over all columns grows exponentially with their number: the plan of a
    # table of 18 columns without a key never ended
    "spark.sql.constraintPropagation.enabled": "false",
    # a page whose bytes are not what was written fails the read: without it values could come out wrong
    "parquet.page.verify-checksum.enabled": "true",
    # Parquet's writer first looks how much it holds after so many rows, then as their size says: by its 100
    # rows of 2 MB had filled the memory
    "parquet.page.size.row.check.min": "1",
    "parquet.block.size.row.check.min": "1",
    # Spark puts variables of the driver's environment, its passwords too, in the place of `${env:…}` in any
    # SQL text: a column of that name would be given the password for a name
    "spark.sql.variable.substitute": "false",
}

# fatal, not error: whatever stops a run reaches the user as one sentence of ours, and Spark logs the same
# failure at error level with its stack trace and sometimes a row's values. --debug asks for more.
LOG4J_PROPERTIES = """\
rootLogger.level = ${env:PGDELTA_SPARK_LOG:-fatal}
rootLogger.appenderRef.stderr.ref = stderr
# without a level of its own this one makes Spark announce, and use, WARN
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = ${env:PGDELTA_SPARK_LOG:-fatal}
# what ends the JVM, out of memory first of all, ends it at once, with code 52: nobody else could say so
logger.end.name = org.apache.spark.util.SparkUncaughtExceptionHandler
logger.end.level = error
logger.end.additivity = false
logger.end.appenderRef.end.ref = end
appender.end.type = Console
appender.end.name = end
appender.end.target = SYSTEM_ERR
appender.end.layout.type = PatternLayout
appender.end.layout.pattern = pgdelta: Spark ended by %replace{%ex{1}}{(?s)[^a-zA-Z.].*}{}; nothing is lost: \
run again, after an OutOfMemoryError with a larger spark.driver.memory%n
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
