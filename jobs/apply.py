"""Bring the silver tables to what bronze holds: `spark-submit jobs/apply.py --config conf/pipeline.yaml`.

Takes the arguments of `pgdelta apply` and does the same; needs nothing else on the line, and runs from any
folder.
"""

import sys
from pathlib import Path

# the code of this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["apply", *sys.argv[1:]]))
