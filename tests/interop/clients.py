"""The server under test: ours, or the reference implementation itself, both with the same settings."""

from __future__ import annotations

from tests.peers.apache import ApacheCluster
from tests.peers.hotfire import HotfireProcess

Server = HotfireProcess | ApacheCluster

# Eighteen steps as in the stock ladder, but short: 16 retries from the third on take 17 s.
DELAY_LEVELS = "1s 3s " + "1s " * 15 + "2s"
APACHE_SETTINGS = {
    "messageDelayLevel": DELAY_LEVELS,
    "recallMessageEnable": "true",
    # On few and busy cores sends that waited 200 ms are refused; speed is not what is tested here.
    "waitTimeMillsInSendQueue": "5000",
    # Not 30 s: who is asked about a transaction twice need not wait for a minute.
    "transactionCheckInterval": "4000",
    # Not 30 s: what the name server is told in time only need not be waited for as long.
    "registerNameServerPeriod": "10000",
    # A dozen stores of a gigabyte each would bring a disk to where brokers delete what is old.
    "mappedFileSizeCommitLog": str(128 << 20),
    # Conditions are off in Apache's broker unless asked for.
    "enablePropertyFilter": "true",
}
HOTFIRE_ARGUMENTS = tuple(
    word for name, value in APACHE_SETTINGS.items() for word in ("--set", f"{name}={value}")
)
