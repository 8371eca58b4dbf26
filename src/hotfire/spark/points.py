"""Named points at which a test may stop us: what a kill right there leaves behind can then be looked at.

Does nothing unless HOTFIRE_SPARK_POINTS names a directory. There the first to reach a point leaves a file of
the point's name with its process id in it; and stops itself, to be killed or continued by signals, where a
file `<point>.stop` lies. Whoever reaches the point later passes by, so that a retry is not stopped again.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

DIRECTORY = "HOTFIRE_SPARK_POINTS"


def reached(point: str) -> None:
    """Tell that this process has come to `point`."""
    directory = os.environ.get(DIRECTORY)
    if not directory:
        return
    # a file appears with its content, or not at all: who sees it may read it
    draft = Path(directory, f".{point}.{os.getpid()}")
    draft.write_text(str(os.getpid()))
    try:
        Path(directory, point).hardlink_to(draft)
    except FileExistsError:
        return
    finally:
        draft.unlink(missing_ok=True)
    if Path(directory, f"{point}.stop").exists():
        # this very thread, at once: told to the process it may go on until another thread hears of it
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
