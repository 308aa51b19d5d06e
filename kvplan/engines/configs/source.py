"""A configuration file as read: shell commands, environment, YAML, JSON or INI, with errors that name the file."""

from __future__ import annotations

import configparser
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

from kvplan.errors import KvplanError

T = TypeVar("T", int, float)
_MOST = 10**21  # bytes, or anything else that is counted

# One piece of shell text; a word may hold quotes, and a comment begins only where a word could.
_PIECE = re.compile(
    r"(?P<space>(?:[ \t\r]|\\\r?\n)+)|(?P<comment>#[^\n]*)|(?P<end>[\n;]|&&?|\|\|?)"
    r"|(?P<word>(?:\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|[^\s;&|'\"\\])+)",
    re.DOTALL,
)
_VARIABLE = re.compile(r"'[^']*'|\$\{(?P<braced>\w+)(?::-(?P<default>[^}]*))?\}|\$(?P<plain>\w+)")
_KEY = re.compile(r"""\s*(?:\{|---|(?:-\s+)?["']?[\w.-]+["']?\s*:(?:\s|$))""")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One command: its words, and the variables set in front of it or earlier in the file."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Values by flag name without dashes in front, '_' for '-' within; '' for a flag without a value."""
        found: dict[str, tuple[str, ...]] = {}
        words = self.words
        for place, word in enumerate(words):
            if not word.startswith("-") or _is_number(word) or word in ("-", "--"):
                continue
            name, equals, value = word.lstrip("-").partition("=")
            following = words[place + 1] if place + 1 < len(words) else "-"
            if not equals and (not following.startswith("-") or _is_number(following)):
                value = following
            key = name.replace("-", "_")
            found[key] = (*found.get(key, ()), value)
        return found

    def last(self, *names: str) -> str | None:
        """The value that counts: the last one given under any of the names."""
        values = [value for name in names for value in self.flags.get(name.replace("-", "_"), ())]
        return values[-1] if values else None


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", word) is not None


@dataclass(frozen=True)
class Source:
    """One file's text under the name that errors call it, read in whichever form is asked for.

    `started` are commands that something else has read already, such as those of a container; there is no text then.
    """

    name: str
    text: str
    started: tuple[Command, ...] | None = None

    @cached_property
    def is_keys(self) -> bool:
        """Whether the text is keys and values (YAML, JSON), no shell; its first line outside comments tells."""
        lines = (line for line in self.text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
        return _KEY.match(next(lines, "")) is not None

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """Shell commands in order. Raises KvplanError naming the line of a quote that is never closed."""
        return tuple(commands_of(self.text, self.name)) if self.started is None else self.started

    @cached_property
    def env(self) -> dict[str, str]:
        """Every variable that the file sets; `export` and `-e` of docker count."""
        return {name: value for command in self.commands for name, value in command.env.items()}

    @cached_property
    def documents(self) -> tuple[Any, ...]:
        """Documents of YAML (JSON is YAML too). Raises KvplanError naming the line."""
        import yaml

        try:
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            return tuple(document for document in yaml.load_all(self.text, loader) if document is not None)
        except RecursionError:
            raise KvplanError(f"{self.name}: nested too deep") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}: " if mark is not None else ""
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise KvplanError(f"{self.name}: {where}not valid YAML: {problem}") from None

    @cached_property
    def mapping(self) -> dict[str, Any]:
        """The file's one mapping. Raises KvplanError where it is none."""
        found = self.documents
        if len(found) != 1 or not isinstance(found[0], dict):
            raise KvplanError(f"{self.name}: a mapping of keys to values is expected")
        return found[0]

    @cached_property
    def sections(self) -> dict[str, dict[str, str]]:
        """Sections of an INI file; what stands before the first is section ''. Raises KvplanError naming the line."""
        parser = configparser.RawConfigParser(
            interpolation=None, strict=True, default_section="\0", delimiters=("=",), comment_prefixes=("#", ";")
        )
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        try:
            parser.read_string("[\1]\n" + self.text)
        except configparser.Error as error:
            raise KvplanError(f"{self.name}: not a valid INI file: {' '.join(str(error).split())}") from None
        return {("" if name == "\1" else name): dict(parser[name]) for name in parser.sections()}


def commands_of(text: str, name: str) -> Iterator[Command]:
    """Commands of shell text, words unquoted, line continuations joined."""
    words: list[str] = []
    known: dict[str, str] = {}
    place = 0
    while place < len(text):
        piece = _PIECE.match(text, place)
        if piece is None:
            line = text.count("\n", 0, place) + 1
            raise KvplanError(f"{name}: line {line}: a quote is not closed")
        if piece["word"]:
            words.append("".join(shlex.split(_expanded(piece["word"], known))))
        elif piece["end"]:
            yield from _command(words, known)
            words = []
        place = piece.end()
    yield from _command(words, known)


def _expanded(word: str, known: Mapping[str, str]) -> str:
    """A word with the variables that the file has set so far; others, and those of odd values, stay as they stand."""

    def value(match: re.Match[str]) -> str:
        found = known.get(match["braced"] or match["plain"] or "", match["default"])
        return match[0] if found is None or not re.fullmatch(r"[\w./:,=+-]*", found) else found

    return _VARIABLE.sub(value, word)


def _command(words: Sequence[str], known: dict[str, str]) -> Iterator[Command]:
    """A command of words, its variables taken off; `known` gathers those that stay set for later commands."""
    rest, env = list(words), dict[str, str]()
    while rest and rest[0] in ("export", "env", "exec", "sudo"):
        rest.pop(0)
    while rest and (match := _ASSIGNED.fullmatch(rest[0])):
        env[match[1]] = match[2]
        rest.pop(0)
    for flag, value in pairwise(rest):
        if flag in ("-e", "--env") and (match := _ASSIGNED.fullmatch(value)):
            env[match[1]] = match[2]
    if not rest:
        known.update(env)
    if rest or env:
        yield Command(words=tuple(rest), env={**known, **env})


def number(text: object, source: str, key: str, unit: str) -> float:
    """A finite number not below 0. Raises KvplanError naming the file, the key and the unit it is in."""
    value = math.nan
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        value = float(text)
    elif isinstance(text, str):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
    if not math.isfinite(value) or value < 0:
        raise KvplanError(f"{source}: {key}: {text!r} is not a number of {unit}")
    return _possible(value, source, key)


def whole(text: object, source: str, key: str, unit: str) -> int:
    """A whole number not below 0, exact however large. Raises KvplanError as `number`."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return _possible(text, source, key)
    if isinstance(text, str) and re.fullmatch(r"\s*\+?\d{1,30}\s*", text):
        return _possible(int(text), source, key)
    value = number(text, source, key, unit)
    if value != int(value):
        raise KvplanError(f"{source}: {key}: {text!r} is not a whole number of {unit}")
    return int(value)


def _possible(value: T, source: str, key: str) -> T:
    if value > _MOST:
        raise KvplanError(f"{source}: {key}: more than any host has")
    return value


def section(value: object, source: str, key: str) -> Mapping[str, Any]:
    """The mapping under a key, empty where nothing stands there. Raises KvplanError naming the key."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise KvplanError(f"{source}: {key}: keys with values are expected, not {value!r:.40}")
    return value


def items(value: object, source: str, key: str) -> Sequence[Any]:
    """The list under a key, empty where nothing stands there. Raises KvplanError naming the key."""
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise KvplanError(f"{source}: {key}: a list is expected, not {value!r:.40}")
    return value


def entries(value: object, source: str, key: str) -> list[Mapping[str, Any]]:
    """The list of mappings under a key. Raises KvplanError naming the key."""
    return [section(one, source, key) for one in items(value, source, key)]


def json_of(text: str, source: str, key: str) -> dict[str, Any]:
    """A JSON object in a flag's value. Raises KvplanError naming the flag."""
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise KvplanError(f"{source}: {key}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise KvplanError(f"{source}: {key}: a JSON object is expected")
    return found


def true(value: object) -> bool:
    """Whether a setting's text or value means yes."""
    return value is True or str(value).strip().lower() in ("true", "1", "yes", "on")
