"""A broker that cannot register says so and keeps trying."""

import asyncio
from pathlib import Path

import pytest

from hotfire.broker import registration
from hotfire.broker.registration import Registration
from tests.unit.broker.harness import Harness


def test_no_failure_ends_the_trying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A host name no resolver takes, an error nobody thought of: told once, dialled again and again."""
    heart = Harness(tmp_path / "store")
    unspeakable = "x" * 64 + ".example:9876"  # a label has 63 characters at most
    dialled: list[str] = []
    enough = asyncio.Event()
    dial = registration.Peer.connect

    async def connect(address: str, *, timeout_s: float) -> registration.Peer:
        dialled.append(address)
        if min(dialled.count(unspeakable), dialled.count("odd:1")) == 3:
            enough.set()
        if address == "odd:1":
            raise ZeroDivisionError("nobody thought of it")
        return await dial(address, timeout_s=timeout_s)

    monkeypatch.setattr(registration.Peer, "connect", connect)
    monkeypatch.setattr(registration, "REDIAL_S", 0.001)

    async def scenario() -> None:
        keeping = Registration(heart.broker, (unspeakable, "odd:1"))
        keeping.start()
        async with asyncio.timeout(10):
            await enough.wait()
        assert await keeping.wait_registered(0.01) == [unspeakable, "odd:1"]
        await keeping.close()

    asyncio.run(scenario())
    heart.close()
    told = [record.getMessage() for record in caplog.records if "not registered" in record.message]
    assert len(told) == 2, told
    assert any("UnicodeError" in line and unspeakable in line for line in told), told
    assert any("nobody thought of it" in line for line in told), told
