"""What a session of an analyst imports: `import pgdelta; pgdelta.as_of(spark, root)`, `pgdelta.live()`.

The code is in `pipeline`; this is its name for people who only read the lake. Airflow's part is
`pgdelta.airflow`.
"""

from pipeline import __version__, as_of, live

__all__ = ["__version__", "as_of", "live"]
