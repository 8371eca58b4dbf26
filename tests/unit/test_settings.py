"""Settings: what a file says, what a program gets, and what is said about a mistake."""

import dataclasses
import enum

import pytest

from hotfire.errors import ConfigError
from hotfire.settings import (
    Form,
    format_properties,
    from_properties,
    load_properties,
    setting,
    settings_of,
    to_properties,
    updated,
)


class Flush(enum.Enum):
    SYNC_FLUSH = 1
    ASYNC_FLUSH = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    listen_port: int = setting(9876, "Where to listen.", low=1, high=65535)
    scan_interval_ms: int = setting(
        5000, "How often to look.", name="scanInterval", unit="ms", low=1, reload=True
    )
    flush: Flush = setting(Flush.SYNC_FLUSH, "When to sync.", name="flushDiskType")  # noqa: RUF009  # it makes a field
    trace: bool = setting(False, "Whether to trace.", reload=True)
    ratio: float = setting(0.5, "How full.", low=0, high=1)
    segment_bytes: int = setting(1024, "Size.", name="mappedFileSize", aliases=("mapedFileSize",))
    address: str | None = setting(None, "Where to bind.", name="bindAddress")
    secret_key: str = setting("", "Shared secret.", secret=True)
    region: str = setting("here", "Where it is.", form=Form("[a-z]+", "small letters"))
    inner: int = 3


def test_properties_file_reads_as_java_reads_it() -> None:
    """Comments, separators, continued lines and escapes of the properties format."""
    text = (
        "\ufeff# comment\n! comment\n\n  a=1\r\nb : 2\rc 3\n\td\te\\\n    f\n"
        "g=x\\\\\nh\\=i\\ j=k\\:\\#\nl=\\u4f60\\t.\nm=\ncafé = über \n"
        "same=1\nsame=2\np=C:\\\\dir\\\\\\\n   q\ntail=\\"
    )
    assert load_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "ef",
        "g": "x\\",
        "h=i j": "k:#",
        "l": "你\t.",
        "m": "",
        "café": "über ",
        "same": "2",
        "p": "C:\\dir\\q",
        "tail": "",
    }


def test_bad_unicode_escape_is_an_error() -> None:
    """A malformed escape is named, as Java refuses it too."""
    with pytest.raises(ConfigError, match="four hexadecimal digits"):
        load_properties("a=\\u12")


def test_values_take_their_types() -> None:
    """Each property lands in its field with its type; what has no setting is reported, not lost."""
    properties = {
        "listenPort": " 1234 ",
        "scanInterval": "10000",
        "flushDiskType": "ASYNC_FLUSH",
        "trace": "TRUE",
        "ratio": "0.75",
        "mapedFileSize": "2048",
        "bindAddress": "0.0.0.0",
        "rocketmqHome": "/opt",
        "inner": "4",
    }
    config, unknown = from_properties(Example, properties)
    assert config == Example(1234, 10000, Flush.ASYNC_FLUSH, True, 0.75, 2048, "0.0.0.0")
    assert unknown == ("rocketmqHome", "inner")


def test_present_spelling_wins_over_the_old_one() -> None:
    """A file with both spellings means the present one."""
    config, unknown = from_properties(Example, {"mapedFileSize": "1", "mappedFileSize": "2"})
    assert (config.segment_bytes, unknown) == (2, ())


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("listenPort", "0", "an integer from 1 to 65535"),
        ("listenPort", "65536", "an integer from 1 to 65535"),
        ("listenPort", "98O6", "an integer"),
        ("listenPort", "1_0", "an integer"),
        ("scanInterval", "0", r"an integer of at least 1 \(ms\)"),
        ("trace", "yes", "true or false"),
        ("trace", "", "true or false"),
        ("flushDiskType", "sync", "one of SYNC_FLUSH, ASYNC_FLUSH"),
        ("ratio", "1.5", "a number 0..1"),
        ("ratio", "nan", "a number 0..1"),
        ("region", "a-b", "small letters"),
        ("region", "", "small letters"),
    ],
)
def test_error_names_key_value_and_range(key: str, value: str, allowed: str) -> None:
    """A value that cannot be used is quoted with its key and what would be allowed."""
    with pytest.raises(ConfigError, match=f"^{key}={value}: must be {allowed}"):
        from_properties(Example, {key: value})


def test_only_listed_settings_change_while_running() -> None:
    """Reloading is an allow-list on the field: everything else is refused, and nothing is half applied."""
    config = updated(Example(), {"scanInterval": "7", "trace": "true"})
    assert (config.scan_interval_ms, config.trace) == (7, True)
    with pytest.raises(ConfigError, match="listenPort cannot be changed while running"):
        updated(config, {"scanInterval": "8", "listenPort": "1"})
    with pytest.raises(ConfigError, match="colour: there is no such setting"):
        updated(config, {"colour": "red"})


def test_printed_settings_read_back() -> None:
    """Every setting is printed, sorted, and reads back to the same config; secrets are not shown."""
    config = Example(listen_port=1, flush=Flush.ASYNC_FLUSH, address="::1")
    text = format_properties(to_properties(config))
    assert text.splitlines() == sorted(text.splitlines())
    assert from_properties(Example, load_properties(text)) == (config, ())
    shown = to_properties(Example(secret_key="hunter2"))
    assert shown["secretKey"] == "******"
    assert "hunter2" not in str(shown)


def test_optional_setting_may_be_empty() -> None:
    """`key=` gives None where None is allowed."""
    assert from_properties(Example, {"bindAddress": ""})[0].address is None


def test_two_settings_of_one_name_are_a_mistake_of_ours() -> None:
    """A name declared twice fails as soon as the settings are read."""

    @dataclasses.dataclass
    class Twice:
        one: int = setting(1, "One.", name="same")
        two: int = setting(2, "Two.", aliases=("same",))

    with pytest.raises(TypeError, match="same"):
        settings_of(Twice)
