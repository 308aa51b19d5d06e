"""llama.cpp: --cache-ram, MiB of whole sequence states that a server process keeps; a router has one a loaded model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvplan.documents import Finding, Knob
from kvplan.engines.configs import conditions, switches
from kvplan.engines.configs.common import (
    MIB,
    Asked,
    Emission,
    Given,
    Reading,
    command,
    finding,
    knob,
    notes,
    part,
    says,
    unbounded,
)
from kvplan.engines.configs.source import Command, Source, whole
from kvplan.errors import KvplanError
from kvplan.units import MiB, show_bytes

FLOOR = "llama.cpp 0.5.0 (October 2026) or newer"
ROUTER_FLOOR = "llama.cpp 0.5.0 (October 2026) or newer, with the router's scheduler of pull request 29217"
SCRIPT, PRESET, ROUTER = "llama-server.sh", "models.ini", "llama-router.sh"
_DEFAULT = 8192
_MODELS = 4  # models at once where --models-max says nothing


def emit(given: Given) -> Emission:
    """The server's command. Without a tier the cache is turned off: 8 GiB are the default."""
    sizes = (_knob("--cache-ram", given.host_bytes // MiB, 1),)
    found = tuple(_conditions(given))
    words: list[tuple[str, ...]] = [("llama-server",), ("--model", _file(given)), *_context(given)]
    words.append(("--cache-ram", sizes[0].written))
    text = command(words, notes(FLOOR, sizes, found))
    return Emission(floor=FLOOR, parts=(part(SCRIPT, "shell", text),), knobs=sizes, findings=found)


def _file(given: Given) -> str:
    """llama.cpp loads GGUF files alone; another name can only say which file is wanted."""
    return given.model if given.model.endswith(".gguf") or given.model == "MODEL" else f"GGUF-OF-{given.model}"


def _context(given: Given) -> Iterator[tuple[str, ...]]:
    """The context that the plan's GPU memory was counted with; without it the server takes the model's own."""
    if given.context_tokens:
        yield "--ctx-size", str(given.context_tokens)
    if given.slots:
        yield "--parallel", str(given.slots)
    if given.cache_types and given.cache_types != ("f16", "f16"):
        yield "--cache-type-k", given.cache_types[0]
        yield "--cache-type-v", given.cache_types[1]
    yield from switches.words("llama.cpp", given)


def emit_router(given: Given) -> Emission:
    """A preset of one model for the router, and the router's command; each loaded model has a cache of its own."""
    sizes = (_knob("cache-ram", given.host_bytes // MiB, 1),)
    found = (
        *_conditions(given),
        finding("info", "one-cache-a-model", "every loaded model has a cache of this size: --models-max bounds them"),
    )
    name = "".join(ch for ch in _file(given) if ch.isprintable() and ch not in "[]")
    lines = [
        *(f"; {note}" for note in notes(ROUTER_FLOOR, (), found)),
        "version = 1",
        "",
        f"[{name}]",
        f"model = {name}",
        *(f"{flag.removeprefix('--')} = {' '.join(value) or 'true'}" for flag, *value in _context(given)),
        f"; {says(sizes[0])}",
        f"cache-ram = {sizes[0].written}",
    ]
    words = [("llama-server",), ("--models-preset", PRESET), ("--models-max", "1")]
    router = command(words, ["save the other file beside this one; further models are sections of it"])
    parts = (part(PRESET, "ini", "\n".join(lines) + "\n"), part(ROUTER, "shell", router))
    return Emission(floor=ROUTER_FLOOR, parts=parts, knobs=sizes, findings=found)


def _knob(name: str, count: int, times: int, why: str = "") -> Knob:
    return knob(name, count, MIB, "server", times, "host", why)


def _conditions(given: Given) -> Iterator[Finding]:
    text = (
        "the pool holds whole sequence states, checkpoints included, and is not page-locked; a larger state is left out"
    )
    yield finding("info", "page-locking", text)
    if given.host_bytes % MiB:
        yield finding("info", "rounding", f"{given.host_bytes % MiB:,} B are less than a MiB and left out")
    yield from conditions.ages(given)


def read(source: Source, asked: Asked) -> Reading:
    """Caches of every llama-server that the file starts."""
    found = [one for one in source.commands if _starts(one)]
    if not found:
        raise KvplanError(f"{source.name}: starts no llama-server")
    knobs: list[Knob] = []
    findings: list[Finding] = []
    for one in found:
        knobs.append(_server(one, source.name))
        if one.last("models_preset") or one.last("models_dir"):
            text = "a router: every loaded model has a cache of its own; check the preset, whose sections overrule this"
            findings.append(finding("warning", "one-cache-a-model", text))
    return Reading(knobs=tuple(knobs), findings=tuple(findings))


def _starts(one: Command) -> bool:
    words = " ".join(one.words)
    return "llama-server" in words or "llama.cpp" in words or {"cache_ram", "cram"} & set(one.flags) != set()


def _server(one: Command, source: str) -> Knob:
    """The cache of one process, or of as many as a router loads at once."""
    routed = one.last("models_preset") or one.last("models_dir")
    count = whole(one.last("models_max") or _MODELS, source, "--models-max", "models") if routed else 1
    text = one.last("cache_ram", "cram")
    if routed and not count:
        return unbounded("--cache-ram", text or str(_DEFAULT), "host", "--models-max 0 loads models without end")
    return _pool("--cache-ram", text, source, max(1, count))


def _pool(name: str, text: str | None, source: str, times: int) -> Knob:
    if text is not None and text.strip() == "-1":
        return unbounded(name, "-1", "host", "-1 is no limit: the host fills until it swaps or kills")
    if text is None:
        why = f"the default: {show_bytes(_DEFAULT * MiB)} a server process"
        return _knob(name, _DEFAULT, times, why)
    return _knob(name, whole(text, source, name, "MiB"), times)


def read_router(source: Source, asked: Asked) -> Reading:
    """Caches of the models of a preset, all of them loaded at once; --ranks has no meaning here."""
    sections = source.sections
    shared = {**sections.get("", {}), **sections.get("*", {})}
    names = [name for name in sections if name not in ("", "*")]
    if not names:
        raise KvplanError(f"{source.name}: a preset has a section for each model, and here is none")
    knobs = [_section(name, {**shared, **sections[name]}, source.name) for name in names]
    text = f"{len(names)} models as if all were loaded at once; --models-max loads fewer"
    return Reading(knobs=tuple(knobs), findings=(finding("info", "one-cache-a-model", text),))


def _section(name: str, options: Mapping[str, str], source: str) -> Knob:
    found = next((options[key] for key in ("cache-ram", "cram", "LLAMA_ARG_CACHE_RAM") if key in options), None)
    return _pool(f"[{name}] cache-ram", found, source, 1)
