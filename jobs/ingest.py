"""Capture PostgreSQL's changes into bronze: `spark-submit jobs/ingest.py --config conf/pipeline.yaml`.

The options are those of `pgdelta ingest`. `spark-submit` needs no others, and the job runs from any folder.
"""

import sys
from pathlib import Path

# the code of this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["ingest", *sys.argv[1:]]))
