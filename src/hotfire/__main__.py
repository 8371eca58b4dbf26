"""`python -m hotfire` is the hotfire command."""

import sys

from hotfire.cli import main

if __name__ == "__main__":
    sys.exit(main())
