"""A seeded hour in the life of a store, on whichever core there is; two cores must leave equal directories.

python -m tests.unit.store.replay DIRECTORY
"""

import random
import sys
from pathlib import Path

from hotfire import core
from tests.unit.store.driven import Driven

SEED = 7


def replay(root: Path) -> None:
    rng = random.Random(SEED)
    driven = Driven(root, segment_bytes=8192, turn_bytes_max=20_000).open()
    for _ in range(400):
        what = rng.random()
        if what < 0.8:
            topic, tags = rng.choice(["orders", "stock", "x" * 130]), rng.choice(["", "red", "grün"])
            properties = {"TAGS": tags} if tags else {}
            driven.send(topic, rng.randrange(3), rng.randbytes(rng.randrange(1500)), **properties)
        elif what < 0.9:
            driven.turn()
        elif what < 0.98:
            driven.turn()
            driven.tick(rng.choice([10, 1000]))
        else:
            driven = driven.reopened()
        if driven.store.journal.is_full:
            driven.turn()
    driven.turn()
    driven.check(driven.sent)
    driven.store.close()


if __name__ == "__main__":
    replay(Path(sys.argv[1]))
    sys.stdout.write(f"{'compiled' if core.COMPILED else 'plain'}\n")
