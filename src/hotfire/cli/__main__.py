"""`python -m hotfire.cli` is the hotfire command."""

import sys

from hotfire.cli import main

sys.exit(main())
