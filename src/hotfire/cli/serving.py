"""What the serving commands share: a loop, signals, limits, logs, and one line that says it is ready."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from hotfire.errors import ConfigError
from hotfire.settings import load_properties

log = logging.getLogger("hotfire")


def serve(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `main` until it ends; the event it gets is set by the first Ctrl-C or SIGTERM."""
    set_up_logs()
    raise_descriptor_limit()
    factory, name = loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_until_stopped(main, name))
    return 0


async def _until_stopped(main: Callable[[asyncio.Event], Awaitable[None]], loop_name: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    log.info("event loop %s", loop_name)
    await main(stop)


def loop_factory() -> tuple[Callable[[], asyncio.AbstractEventLoop], str]:
    """uvloop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop, "asyncio"
    return uvloop.new_event_loop, "uvloop"


def set_up_logs() -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )


def raise_descriptor_limit() -> None:
    """Queues and connections each take a descriptor; the soft limit of 1024 is for other programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def settle() -> None:
    """Objects made so far live for ever: keep the collector from walking them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def say(line: str) -> None:
    print(line, flush=True)


def read_config_file(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return load_properties(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"configuration file {path}: byte {error.start} is not UTF-8; save it as UTF-8, or write \\uXXXX"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"configuration file {path}: {error}") from None


def warn_unknown(unknown: tuple[str, ...], path: str | None) -> None:
    if unknown:
        log.warning("settings without effect file=%s keys=%s", path, ",".join(sorted(unknown)))
