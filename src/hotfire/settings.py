"""Settings: one frozen dataclass per program, filled from `key=value` files as Apache's tools write them.

A setting is declared once, as a field made by `setting(...)`: default, unit, range, whether it may be
changed while running, whether it is secret, and one sentence of help. Loader, command line, config
requests and docs all read that declaration. A field `listen_port` is the property `listenPort`, unless
the declaration names it otherwise; old spellings are aliases.

Knows no particular setting, opens no file.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from hotfire.errors import ConfigError
from hotfire.protocol.fields import camel_case

Config = TypeVar("Config")

SECRET_SHOWN = "******"  # noqa: S105  # what is shown instead of one
_KEY = "hotfire.setting"
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


class NotReloadable(ConfigError):
    """The setting exists and cannot be changed while the program runs."""


class Form(NamedTuple):
    """What a text may look like: the whole of it matches `pattern`; `words` say so to a person."""

    pattern: str
    words: str


class Setting(NamedTuple):
    """One setting as readers of the declaration see it."""

    field: str
    key: str
    kind: type[Any]
    optional: bool
    default: Any
    help: str
    unit: str | None
    low: float | None
    high: float | None
    reload: bool
    secret: bool
    aliases: tuple[str, ...]
    form: Form | None

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        if issubclass(self.kind, enum.Enum):
            return "one of " + ", ".join(member.name for member in self.kind)
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return self.form.words if self.form else "text"
        noun = "an integer" if self.kind is int else "a number"
        if self.low is not None and self.high is not None:
            noun += (
                f" from {self.low:d} to {self.high:d}" if self.kind is int else f" {self.low}..{self.high}"
            )
        elif self.low is not None:
            noun += f" of at least {self.low}"
        elif self.high is not None:
            noun += f" of at most {self.high}"
        return noun + (f" ({self.unit})" if self.unit else "")


def setting(
    default: Any,
    help: str,
    *,
    name: str | None = None,
    unit: str | None = None,
    low: float | None = None,
    high: float | None = None,
    reload: bool = False,
    secret: bool = False,
    aliases: tuple[str, ...] = (),
    form: Form | None = None,
) -> Any:
    """A field of a config dataclass. `name` is the property's where camelCase does not give it."""
    metadata = {
        "name": name, "help": help, "unit": unit, "low": low, "high": high,
        "reload": reload, "secret": secret, "aliases": aliases, "form": form,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata={_KEY: metadata})


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Every setting of a config dataclass, in the order declared."""
    hints = get_type_hints(cls)
    declared = tuple(
        _describe(field, hints[field.name]) for field in dataclasses.fields(cls) if _KEY in field.metadata
    )
    names = [name for one in declared for name in (one.key, *one.aliases)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TypeError(f"{cls.__name__}: two settings are called {', '.join(twice)}")
    return declared


def _describe(field: dataclasses.Field[Any], hint: Any) -> Setting:
    optional = False
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        optional, hint = len(kinds) < len(get_args(hint)), kinds[0]
    known = hint in (int, float, bool, str) or (isinstance(hint, type) and issubclass(hint, enum.Enum))
    if not known:
        raise TypeError(f"setting {field.name}: {hint} is none of int, float, bool, str or an Enum")
    metadata = dict(field.metadata[_KEY])
    name = metadata.pop("name") or camel_case(field.name)
    return Setting(
        field=field.name, key=name, kind=hint, optional=optional, default=field.default, **metadata
    )


# --- text -> config --------------------------------------------------------------------------------


def from_properties(cls: type[Config], properties: Mapping[str, str]) -> tuple[Config, tuple[str, ...]]:
    """The config these properties spell, defaults elsewhere, and the keys it has no setting for.

    A key given in its present and an old spelling takes the present one.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Example:
    ...     listen_port: int = setting(9876, "Where to listen.", low=1, high=65535)
    >>> from_properties(Example, {"listenPort": "1234", "colour": "red"})
    (Example(listen_port=1234), ('colour',))
    """
    known = settings_of(cls)
    values = {}
    for one in known:
        for name in (one.key, *one.aliases):
            if name in properties:
                values[one.field] = parse_value(one, properties[name], name)
                break
    spelled = {name for one in known for name in (one.key, *one.aliases)}
    return cls(**values), tuple(key for key in properties if key not in spelled)


def updated(config: Config, properties: Mapping[str, str]) -> Config:
    """`config` with these values, each of which must be a setting that may change while running."""
    by_name = {name: one for one in settings_of(type(config)) for name in (one.key, *one.aliases)}
    values = {}
    for name, text in properties.items():
        one = by_name.get(name)
        if one is None:
            raise ConfigError(f"{name}: there is no such setting")
        if not one.reload:
            raise NotReloadable(f"{name} cannot be changed while running; set it in the file and restart")
        values[one.field] = parse_value(one, text, name)
    return dataclasses.replace(config, **values)  # type: ignore[type-var]  # settings_of took it for one


def parse_value(one: Setting, text: str, name: str | None = None) -> Any:
    """The value `text` spells for this setting; ConfigError names key, value and what is allowed."""
    text = text.strip()
    try:
        value = _parse(one, text)
    except ValueError:
        shown = SECRET_SHOWN if one.secret else text[:80]
        raise ConfigError(f"{name or one.key}={shown}: must be {one.allowed}") from None
    return value


def check_value(one: Setting, value: object, name: str) -> None:
    """ConfigError, in the words of `parse_value`, unless code may give this value to the setting."""
    kinds = (int, float) if one.kind is float else one.kind
    is_kind = isinstance(value, kinds) and isinstance(value, bool) == (one.kind is bool)
    try:
        if not (is_kind or (value is None and one.optional)):
            _wrong()
        _parse(one, _text(value))
    except ValueError:
        shown = SECRET_SHOWN if one.secret else f"{value!s:.80}"
        raise ConfigError(f"{name}={shown}: must be {one.allowed}") from None


def _parse(one: Setting, text: str) -> Any:
    if not text and one.optional:
        return None
    if one.kind is str:
        return text if one.form is None or re.fullmatch(one.form.pattern, text) else _wrong()
    if one.kind is bool:
        # Java takes everything but "true" for false; a typing error should not switch something off.
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _wrong()
    if issubclass(one.kind, enum.Enum):
        return one.kind[text] if text in one.kind.__members__ else _wrong()
    if one.kind is int and not _INTEGER.fullmatch(text):
        return _wrong()
    value = one.kind(text)
    low = one.low if one.low is not None else value
    high = one.high if one.high is not None else value
    return value if low <= value <= high else _wrong()  # not-a-number is outside every range


def _wrong() -> Any:
    raise ValueError


# --- config -> text --------------------------------------------------------------------------------


def to_properties(config: object) -> dict[str, str]:
    """Every setting by property name, sorted as Apache's tools print them; secrets are not shown."""
    shown = {}
    for one in settings_of(type(config)):
        value = getattr(config, one.field)
        shown[one.key] = SECRET_SHOWN if one.secret and value else _text(value)
    return dict(sorted(shown.items()))


def format_properties(properties: Mapping[str, str]) -> str:
    """`key=value` lines."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.name if isinstance(value, enum.Enum) else str(value)


# --- the file format -------------------------------------------------------------------------------

_SPACE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NATURAL_LINE = re.compile(r"\r\n|\r|\n")


def load_properties(text: str, *, with_bare: bool = True) -> dict[str, str]:
    r"""What a Java properties file says: comments, continued lines, escapes; the last of equal keys wins.

    Without `with_bare`, lines that give their key no value at all take none away either.

    >>> load_properties("# ports\nlistenPort = 9876\nbrokerName:a\\u0062 \\\n   c\nflag\n")
    {'listenPort': '9876', 'brokerName': 'ab c', 'flag': ''}
    """
    properties = {}
    for line in _logical_lines(text.removeprefix("\ufeff")):
        key, value = _split(line)
        if key == line.rstrip(_SPACE) and not with_bare:
            continue
        properties[_unescape(key)] = _unescape(value)
    return properties


def bare_lines(text: str) -> tuple[str, ...]:
    r"""Lines of a properties file that name a key and give it no value at all.

    Java takes them for keys with an empty value; a person forgot something.

    >>> bare_lines("brokerName\nlistenPort = 9876\nbrokerIP1=\n")
    ('brokerName',)
    """
    lines = (line.rstrip(_SPACE) for line in _logical_lines(text.removeprefix("\ufeff")))
    return tuple(line for line in lines if _split(line)[0] == line)


def _logical_lines(text: str) -> Iterator[str]:
    """Lines less leading space, blanks and comments; one ending in an odd backslash goes on in the next."""
    begun: str | None = None
    for natural in _NATURAL_LINE.split(text):
        line = natural.lstrip(_SPACE)
        if begun is None and (not line or line[0] in "#!"):
            continue
        whole = line if begun is None else begun + line
        if (len(whole) - len(whole.rstrip("\\"))) % 2:
            begun = whole[:-1]
            continue
        yield whole
        begun = None
    if begun is not None:
        yield begun


def _split(line: str) -> tuple[str, str]:
    """Key and value: cut at the first unescaped `=`, `:` or space, and one `=` or `:` among spaces."""
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SPACE)
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        what = match[1]
        if len(what) == 5:
            return chr(int(what[1:], 16))
        if what == "u":
            raise ConfigError(f"{text[:80]!r}: \\u must be followed by four hexadecimal digits")
        return _ESCAPES.get(what, what)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.|$)", replace, text, flags=re.DOTALL)
