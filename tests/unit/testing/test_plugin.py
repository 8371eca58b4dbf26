"""Whoever has Hotfire installed has its fixtures in pytest, and pays nothing for those not used."""

import json
import subprocess
import sys

import pytest

pytest_plugins = "pytester"


@pytest.mark.timeout(240)
def test_fixtures_are_there_without_a_word(pytester: pytest.Pytester) -> None:
    """Synchronous, asynchronous and shared clusters, set up by a mark, in a project of someone else's."""
    pytester.makepyfile(
        """
        import asyncio

        import pytest
        from hotfire import Message, Producer

        async def send(namesrv, topic):
            async with Producer(namesrv) as producer:
                return (await producer.send(Message(topic, b"x"))).queue_offset

        def test_sync(hotfire_cluster):
            hotfire_cluster.create_topic("orders", queues=1)
            assert asyncio.run(send(hotfire_cluster.namesrv, "orders")) == 0
            hotfire_cluster.brokers[0].kill()
            hotfire_cluster.brokers[0].start()
            assert asyncio.run(send(hotfire_cluster.namesrv, "orders")) == 1

        @pytest.mark.hotfire(brokers=2, name_servers=2, proxied=True)
        def test_marked(hotfire_cluster):
            assert len(hotfire_cluster.brokers) == len(hotfire_cluster.name_servers) == 2
            assert hotfire_cluster.brokers[0].proxy is not None

        def test_in_the_tests_own_loop(hotfire_async_cluster):
            async def scenario():
                async with hotfire_async_cluster as cluster:
                    await cluster.create_topic("orders")
                    assert await send(cluster.namesrv, "orders") == 0
                    await cluster.clock.turn(60)
            asyncio.run(scenario())

        @pytest.fixture(scope="session")
        def seen():
            return set()

        @pytest.mark.parametrize("number", [0, 1])
        def test_shared(hotfire_session_cluster, seen, number):
            seen.add(hotfire_session_cluster.namesrv)
            assert len(seen) == 1
            hotfire_session_cluster.create_topic("mine", queues=1)
            assert asyncio.run(send(hotfire_session_cluster.namesrv, "mine")) == number
        """
    )
    result = pytester.runpytest_subprocess("--strict-markers", "-W", "error", "-q")
    result.assert_outcomes(passed=5)


def test_a_mark_without_names_is_refused(pytester: pytest.Pytester) -> None:
    """A mark that cannot be understood says how it is to be written."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.hotfire(2)
        def test_marked(hotfire_cluster):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*takes named arguments only*"])


def test_a_word_that_no_cluster_knows_is_named(pytester: pytest.Pytester) -> None:
    """With the one that was meant, and nothing of what is inside."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.hotfire(borkers=2)
        def test_marked(hotfire_cluster):
            pass
        """
    )
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a cluster has no setting borkers; did you mean brokers? *"])
    result.stdout.no_fnmatch_line("*TypeError*")


def test_the_plugin_costs_nothing_until_it_is_used() -> None:
    """Loading it imports nothing of Hotfire but its two front doors, and no event loop."""
    program = (
        "import sys, json; before = set(sys.modules); import hotfire.testing.plugin; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", f"import pytest; {program}"], check=True, capture_output=True, text=True
    )
    loaded = json.loads(told.stdout)
    assert [name for name in loaded if name.startswith("hotfire")] == [
        "hotfire", "hotfire.testing", "hotfire.testing.plugin",
    ]  # fmt: skip
    assert "asyncio" not in loaded
