"""Run the command line as ``python -m siteless``."""

import sys

from siteless.cli import main

if __name__ == "__main__":
    sys.exit(main())
