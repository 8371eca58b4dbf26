"""The generators of load are C programs: without a compiler there is nothing to look at."""

import shutil

collect_ignore = [] if shutil.which("gcc") else ["test_generators.py"]
