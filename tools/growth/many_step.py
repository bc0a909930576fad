"""Run one job and print what it took as JSON: `python -m tools.growth.many_step FILE JOB`.

The job runs as the command does, but apply without Spark: its clock and its JVM cost the same for any number
of tables.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from pipeline.config.config import Config
from pipeline.config.load import load_config
from tests.support.bronze_reads import bronze_reads


def run_job(config: Config, job: str) -> int:
    """Run `ingest`, `apply` or `status`; return its exit code."""
    if job == "ingest":
        from pipeline.ingest.job import run_ingest

        return run_ingest(config).exit_code(strict=True)
    if job == "apply":
        from pipeline.apply.applier import Applier

        applier = Applier(None, config)
        applier.apply_pending()
        applier.close()
        if applier.lake.sessions._spark is not None:
            raise RuntimeError("apply has started Spark")
        return applier.summary.exit_code(strict=True)
    from pipeline.report.status import read_status

    return int(not read_status(config).tables)


def main(file: str, job: str) -> int:
    """Run a job and print seconds, processor time, peak memory in MiB, and opened files of bronze."""
    began = time.perf_counter()
    with bronze_reads() as reads:
        code = run_job(load_config(Path(file)), job)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "seconds": time.perf_counter() - began,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss >> 10,
        "files": len(reads.paths),
    }
    print(json.dumps(found), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
