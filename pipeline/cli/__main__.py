"""`python -m pipeline.cli`: the command line without its script."""

import sys

from pipeline.cli.start import main

sys.exit(main())
