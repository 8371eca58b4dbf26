"""Unique ids: of many processes, without one twice, and what their digits mean."""

import os
import subprocess
import sys
from datetime import datetime

import pytest

from hotfire import Producer
from hotfire.net.addresses import local_address
from hotfire.protocol.record import Host

PROCESSES, EACH = 4, 250_000
MAKE = f"""
import time
from hotfire import Producer
producer = Producer("127.0.0.1:9876")
print("\\n".join(producer._next_id() for _ in range({EACH})))
"""


@pytest.mark.promise(88)
def test_a_million_ids_of_four_processes_are_unique() -> None:
    """Producers of four processes make 250,000 ids each, at the same time: a million different ones."""
    processes = [
        subprocess.Popen([sys.executable, "-c", MAKE], stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    texts = [process.communicate(timeout=55)[0] for process in processes]
    ids = [line for text in texts for line in text.splitlines()]
    assert len(ids) == len(set(ids)) == PROCESSES * EACH
    assert {int(text[8:12], 16) for text in texts} == {process.pid & 0xFFFF for process in processes}


@pytest.mark.promise(88)
def test_fields_of_an_id() -> None:
    """4 bytes of address, 2 of process id, 4 that are the process's own, 4 of milliseconds since the month
    began, 2 of a counter."""
    producer = Producer("127.0.0.1:9876")
    now = datetime.now().astimezone()
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    since_ms = int((now - month).total_seconds() * 1000)
    one, two = (bytes.fromhex(producer._next_id()) for _ in range(2))
    assert len(one) == 16
    assert one[:4] == Host.parse(local_address(), 0).address
    assert int.from_bytes(one[4:6], "big") == os.getpid() & 0xFFFF
    assert one[6:10] == two[6:10]
    assert abs(int.from_bytes(one[10:14], "big") - since_ms) < 60_000
    assert int.from_bytes(two[14:], "big") == int.from_bytes(one[14:], "big") + 1
