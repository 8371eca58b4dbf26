"""What the serving commands share: a loop, signals, limits, logs, and one line that says it is ready."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hotfire.apache_settings import refuse_relied_upon
from hotfire.errors import ConfigError
from hotfire.memory import keep_freed_memory
from hotfire.net.tls_settings import CONFIG_FILE, TlsServerConfig
from hotfire.settings import Config, bare_lines, from_properties, load_properties

log = logging.getLogger("hotfire")

DESCRIPTORS_ENOUGH = 8192
DESCRIPTORS_LEAST = 256
"""A broker without queues or clients has about thirty files and sockets open. With fewer than this a topic or
two and their clients would use the rest up, and a send would fail for what the start could have told."""
SWITCH_INTERVAL_S = 0.0005
"""How long another thread may keep the interpreter while the loop wants it: a tenth of what is usual."""


def serve(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `main` until it ends; the event it gets is set by the first Ctrl-C or SIGTERM."""
    set_up_logs()
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
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


async def until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Whether the work came to its end before the stop; if not, it is cancelled."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return True
        return False
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


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
    """Queues and connections each take a descriptor; the soft limit of 1024 is for other programs.

    With what no broker could live on nothing is started, brokers or not: it would serve and then fail.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:  # a system's own ceiling; what we have must do
            log.info("limit of open files stays at %d: %s", soft, error)
    if soft < DESCRIPTORS_LEAST:
        raise ConfigError(
            f"limit of open files is {soft}, and every connection and file takes one: "
            f"{DESCRIPTORS_LEAST} are needed at the least, {DESCRIPTORS_ENOUGH} or more to serve many; "
            f"raise the hard limit "
            f"(ulimit -Hn {DESCRIPTORS_ENOUGH}, LimitNOFILE={DESCRIPTORS_ENOUGH} of a systemd unit)"
        )
    if soft < DESCRIPTORS_ENOUGH:
        log.warning(
            "limit of open files is %d, and every connection and file takes one: raise the hard limit to "
            "%d or more (ulimit -Hn, LimitNOFILE= of a systemd unit)",
            soft, DESCRIPTORS_ENOUGH,
        )  # fmt: skip


def settle() -> None:
    """Objects made so far live for ever: keep the collector from walking them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    keep_freed_memory()


def say(line: str) -> None:
    print(line, flush=True)


class ConfigFile(NamedTuple):
    """What a configuration file says, and the lines of it that say nothing."""

    path: str | None
    properties: dict[str, str]
    bare: tuple[str, ...] = ()


def read_config_file(path: str | None) -> ConfigFile:
    if path is None:
        return ConfigFile(None, {})
    try:
        text = Path(path).read_text("utf-8")
        file = ConfigFile(path, load_properties(text, with_bare=False), bare_lines(text))
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"configuration file {path}: byte {error.start} is not UTF-8; save it as UTF-8, or write \\uXXXX"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"configuration file {path}: {error}") from None
    return file


def take_settings(
    cls: type[Config], file: ConfigFile, given: Mapping[str, str], apache: frozenset[str]
) -> tuple[Config, Callable[[], None]]:
    """The config of a file and of what was given besides, and how to tell what of the file has no effect."""
    tls = read_tls_file({**file.properties, **given})
    properties = {**tls.properties, **file.properties, **given}
    config, unused = from_properties(cls, properties)
    refuse_relied_upon({key: properties[key] for key in unused})
    wrong = sorted(set(given) & set(unused))
    if wrong:
        raise ConfigError(f"no such setting: {', '.join(wrong)}; -p lists them all")
    known = sorted(set(unused) & apache)
    strange = sorted(set(unused) - apache)
    bare = file.bare + tls.bare
    files = ",".join(filter(None, [file.path, tls.path]))

    def tell() -> None:
        if known:
            log.info("settings known, without effect here file=%s keys=%s", files, ",".join(known))
        if strange or bare:
            log.warning(
                "settings without effect file=%s unknown=%s lines_without_equals_sign=%s",
                files, ",".join(strange), ",".join(bare),
            )  # fmt: skip

    return config, tell


def read_tls_file(properties: Mapping[str, str]) -> ConfigFile:
    """Apache's tls.properties, for what `properties` leave open; only another file than its must be there."""
    config, _ = from_properties(TlsServerConfig, properties)
    path = config.tls_config_file
    if not path or (path == CONFIG_FILE and not Path(path).exists()):
        return ConfigFile(None, {})
    return read_config_file(path)


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """The settings of `--set KEY=VALUE`."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: expected KEY=VALUE")
        settings[key.strip()] = value
    return settings
