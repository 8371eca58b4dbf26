"""`make bench`, or `python bench/run.py --help`: figures of this machine, beside those of Apache RocketMQ."""

import sys
from pathlib import Path


def main() -> int:
    # Run as a script, this file knows its own directory only; the peers live beside it, in tests.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from bench.compare import main as compare

    return compare(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
