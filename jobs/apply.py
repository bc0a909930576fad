"""Apply what bronze holds to the silver tables: `spark-submit jobs/apply.py --config conf/pipeline.yaml`.

The options are those of `pgdelta apply`. `spark-submit` needs no others, and the job runs from any folder.
"""

import sys
from pathlib import Path

# the code of this checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.cli.start import main

if __name__ == "__main__":
    sys.exit(main(["apply", *sys.argv[1:]]))
