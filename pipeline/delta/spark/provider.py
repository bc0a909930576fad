"""The Spark session of a lake, started where it is first needed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.delta.spark.launcher import is_launched_by_spark
from pipeline.delta.store.looks import look_again
from pipeline.delta.store.store import SCHEMES, WITHOUT_SPARK
from pipeline.errors import NOTICES, ConfigError, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkProvider:
    """A Spark session, or the name of an application whose session starts at its first use.

    Safe to use from several threads. It is refused if it has no client for a root of the scheme or, with
    `commits`, if its commits there do not exclude those of other processes. `hadoop` are settings of Hadoop's
    clients, for those that the session does not have. `verify` is called with the session before its first
    use.
    """

    verify: Callable[[SparkSession], None] | None = None

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        name: str = "pgdelta",
        scheme: str = "file",
        commits: bool = False,
        hadoop: Mapping[str, str] | None = None,
    ) -> None:
        self._hadoop = dict(hadoop or {})
        self._spark = spark
        self._name = name
        self._scheme = scheme
        self._commits = commits
        self._is_checked = False
        self._has_client = False
        self._lock = threading.Lock()
        if spark is not None:  # which others use without this provider
            self._set_hadoop(spark)

    @property
    def session(self) -> SparkSession:
        """The session; raises LakeError if Delta's JARs, the log store or a client are missing."""
        look_again()
        with self._lock:
            if self._spark is None:
                from pipeline.delta.fence import announce_fences
                from pipeline.delta.spark.session import start_session

                self._spark = start_session(self._name)
                announce_fences(self._spark)
            self._set_hadoop(self._spark)
            if not self._has_client:
                require_client(self._spark, self._scheme)
                self._has_client = True
            self._check(self._spark)
            if self.verify is not None:
                self.verify(self._spark)
                self.verify = None
            return self._spark

    def announce(self, why: str) -> None:
        """Say why the session starts, where it has not started and this process starts it."""
        if self.started is None and not is_launched_by_spark():
            NOTICES.info("Spark starts for %s", why)

    def new(self) -> SparkProvider:
        """Return a provider of another session, with settings and views of its own."""
        return _NewSession(self)

    def check(self) -> None:
        """Raise LakeError if there is a session and its commits do not exclude others."""
        if self._spark is not None:
            self._check(self._spark)

    @property
    def started(self) -> SparkSession | None:
        """The session, None if it has not started; another one of the process may have cached logs."""
        if self._spark is None and "pyspark.sql" in sys.modules:
            from pyspark.sql import SparkSession

            # the active one is that of this thread
            return SparkSession.getActiveSession() or SparkSession._instantiatedSession
        return self._spark

    def _set_hadoop(self, spark: SparkSession) -> None:
        while self._hadoop:
            _set_unless_set(spark, *self._hadoop.popitem())

    def _check(self, spark: SparkSession) -> None:
        if self._commits and not self._is_checked:
            from pipeline.delta.spark.log_store import require_log_store

            require_log_store(spark, self._scheme)
            self._is_checked = True


def _set_unless_set(spark: SparkSession, name: str, value: str) -> None:
    context: Any = spark.sparkContext
    settings = context._jsc.hadoopConfiguration()
    # only what Hadoop's own defaults do not say counts as set
    if not settings.getPropertySources(name) or settings.getPropertySources(name)[0].endswith("-default.xml"):
        settings.set(name, value)


def require_client(spark: SparkSession, scheme: str) -> None:
    """Raise LakeError if Spark has no client for a store of the scheme, ConfigError for an unknown scheme."""
    if scheme not in WITHOUT_SPARK and scheme in ("", "file", *SCHEMES):
        return
    from py4j.protocol import Py4JJavaError

    session: Any = spark._jsparkSession
    jvm: Any = spark._jvm
    try:
        settings = session.sessionState().newHadoopConf()
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, settings)
    except Py4JJavaError:
        if scheme not in WITHOUT_SPARK:
            raise ConfigError(
                f"Spark has no client for {scheme}:, the scheme of storage.root. Correct storage.root, or"
                " give Spark Hadoop's client for that storage."
            ) from None
        raise LakeError(
            f"This needs Spark, which has no client for {scheme}: on its class path. Set silver.writer: "
            "native, with which apply needs no Spark there, or give Spark Hadoop's client for the store."
        ) from None


class NoSpark(SparkProvider):
    """No session: what needs one fails."""

    def __init__(self, reason: str) -> None:
        """Give the error that says what to do instead."""
        super().__init__()
        self._reason = reason

    @property
    def session(self) -> SparkSession:
        """Raise LakeError."""
        raise LakeError(self._reason)


class _NewSession(SparkProvider):
    """A session that is made from another one when it is first used.

    The jobs of each thread that uses it share the cores with those of other threads.
    """

    def __init__(self, parent: SparkProvider) -> None:
        super().__init__()
        self._parent = parent

    @property
    def session(self) -> SparkSession:
        """The session."""
        from pipeline.delta.spark.session import new_session, use_own_pool

        look_again()
        with self._lock:
            if self._spark is None:
                self._spark = new_session(self._parent.session)
            use_own_pool(self._spark)
            return self._spark

    @property
    def started(self) -> SparkSession | None:
        """The session, or the one that it will be made from, None if neither has started."""
        return self._spark or self._parent.started
