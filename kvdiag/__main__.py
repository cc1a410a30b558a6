"""`python -m kvdiag`."""

import sys

from kvdiag.cli import main

if __name__ == "__main__":
    sys.exit(main())
