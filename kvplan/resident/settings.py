"""Settings to paste: llama.cpp's router, llama-swap, Ollama; each with the bytes that it means."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from kvplan.documents import LimitSearch, Machine, ResidencyPolicy, ResidentModel
from kvplan.resident.search import models_that_fit
from kvplan.units import show_bytes


def safe_count(models: Sequence[ResidentModel], machine: Machine, search: LimitSearch | None) -> int:
    """Models to allow at once: the best of the search where it counts models, never more than fit in bytes."""
    fit = max(1, models_that_fit(models, machine.models_bytes))
    if search is not None and search.unit == "models" and search.best is not None:
        return min(fit, search.best)
    return fit


def settings(
    models: Sequence[ResidentModel], machine: Machine, policy: ResidencyPolicy, search: LimitSearch | None
) -> Mapping[str, str]:
    """What each server is given for this machine. Model paths that the list does not name stay to be filled in."""
    count = safe_count(models, machine, search)
    return {
        "llama.cpp router, models.ini": _router_ini(models),
        "llama.cpp router, command": _router_command(models, machine, policy, count),
        "llama-swap, config.yaml": _llama_swap(models, machine, policy),
        "Ollama, environment": _ollama(models, machine, policy, count),
    }


def _largest(models: Sequence[ResidentModel], machine: Machine, count: int) -> str:
    sizes = sorted((model.total_bytes for model in models), reverse=True)
    return f"the {count} largest take {show_bytes(sum(sizes[:count]))} of {show_bytes(machine.models_bytes)}"


def _beside_pinned(models: Sequence[ResidentModel], count: int) -> list[str]:
    """A line where a count is too small for what is pinned and one more, which is what was played."""
    pinned = [model.name for model in models if model.pinned]
    if not pinned or count > len(pinned) or len(pinned) == len(models):
        return []
    names = ", ".join(_line(name) for name in pinned)
    return [
        f"# {count} at once has no place beside what is pinned: serve {names} outside it, or it is evicted each time"
    ]


def _context(model: ResidentModel) -> int | None:
    """Tokens that the model's KV bytes hold, in whole steps of 256 as llama.cpp rounds."""
    if not model.kv_bytes_per_token or not model.kv_bytes:
        return None
    return model.kv_bytes // model.kv_bytes_per_token // 256 * 256 or None


def _line(text: str) -> str:
    """A name that can stand on one line of a configuration file."""
    return "".join(character for character in text if character.isprintable())


def _router_ini(models: Sequence[ResidentModel]) -> str:
    lines = [
        "version = 1",
        "",
        "; without this every loaded model may take 8192 MiB of host memory beside what is counted here",
    ]
    lines += ["; give a model more in its own section, and count it among the model's bytes", "[*]", "cache-ram = 0"]
    for model in models:
        lines += ["", *_section(_line(model.name)), f"; {show_bytes(model.total_bytes)} while loaded"]
        lines.append(f"model = {_line(model.path)}" if model.path else "; model = PATH of the GGUF file")
        if (tokens := _context(model)) is not None:
            held = show_bytes(tokens * (model.kv_bytes_per_token or 0))
            lines += [f"; {tokens:,} tokens of KV cache are {held}", f"ctx-size = {tokens}"]
        if model.pinned:
            lines.append("load-on-startup = true")
    return "\n".join(lines) + "\n"


def _section(name: str) -> list[str]:
    """The section of a model, and the alias by which requests find it.

    The router writes what follows a colon in capitals and knows the model by that name alone, unless an alias says
    otherwise. A section ends at its first `]`; an alias ends at a comma or a comment.
    """
    head = name.replace("]", ")")
    lines = [f"[{head}]"]
    if head != name:
        lines.append(f"; a section's name cannot hold ']': requests have to ask for {head}")
    if ":" in head and not set(head) & set(",;#"):
        lines.append(f"alias = {head}")
    return lines


def _router_command(models: Sequence[ResidentModel], machine: Machine, policy: ResidencyPolicy, count: int) -> str:
    lines = [f"# {_largest(models, machine, count)}", *_beside_pinned(models, count)]
    command = f"llama-server --models-preset models.ini --models-max {count}"
    if policy.sleep_after_s:
        command += f" --sleep-idle-seconds {math.ceil(policy.sleep_after_s)}"
    if any(model.pinned for model in models):
        lines.append("# the router has no pinning: load-on-startup loads a model, and it may still be evicted")
    return "\n".join([*lines, command]) + "\n"


def _quoted(text: str) -> str:
    return '"' + _line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _llama_swap(models: Sequence[ResidentModel], machine: Machine, policy: ResidencyPolicy) -> str:
    lines = ["models:"]
    for model in models:
        context = _context(model)
        size = f" -c {context}" if context is not None else ""
        command = f"llama-server --port ${{PORT}} -m {shlex.quote(model.path or 'PATH')}{size} --cache-ram 0"
        lines += [f"  {_quoted(model.name)}:  # {show_bytes(model.total_bytes)}", f"    cmd: {_quoted(command)}"]
        if policy.keep_alive_s and not model.pinned:
            lines.append(f"    ttl: {math.ceil(policy.keep_alive_s)}")
    lines.append("groups:  # a file has these or a matrix, never both")
    crowded = sum(model.total_bytes for model in models) > machine.models_bytes
    for name, swap, persistent, members in _groups(models, machine):
        lines += [
            f"  {_quoted(name)}:  # {show_bytes(sum(model.total_bytes for model in members))}",
            f"    swap: {str(swap).lower()}",
            f"    exclusive: {str(crowded and not persistent).lower()}",
            f"    persistent: {str(persistent).lower()}",
            f"    members: [{', '.join(_quoted(model.name) for model in members)}]",
        ]
    return "\n".join(lines) + "\n"


def _groups(models: Sequence[ResidentModel], machine: Machine) -> list[tuple[str, bool, bool, Sequence[ResidentModel]]]:
    """Groups as (name, one at a time, never unloaded by others, members): pinned, each own group, the rest."""
    made: list[tuple[str, bool, bool, Sequence[ResidentModel]]] = []
    pinned = [model for model in models if model.pinned]
    if pinned:
        made.append(("pinned", False, True, pinned))
    names = list(dict.fromkeys(model.group for model in models if model.group is not None and not model.pinned))
    made += [(name, False, False, [m for m in models if m.group == name and not m.pinned]) for name in names]
    rest = [model for model in models if model.group is None and not model.pinned]
    if rest:
        room = machine.models_bytes - sum(model.total_bytes for model in pinned)
        made.append(("shared", sum(model.total_bytes for model in rest) > room, False, rest))
    return made


def _ollama(models: Sequence[ResidentModel], machine: Machine, policy: ResidencyPolicy, count: int) -> str:
    lines = [f"# {_largest(models, machine, count)}", *_beside_pinned(models, count)]
    lines.append(f"OLLAMA_MAX_LOADED_MODELS={count}")
    if policy.keep_alive_s:
        lines.append(f"OLLAMA_KEEP_ALIVE={math.ceil(policy.keep_alive_s)}s")
    contexts = [tokens for model in models if (tokens := _context(model)) is not None]
    if contexts and len(contexts) == len(models):
        least = min(contexts)
        most = max(least * (model.kv_bytes_per_token or 0) for model in models)
        lines += [f"# {least:,} tokens are at most {show_bytes(most)} of KV cache", f"OLLAMA_CONTEXT_LENGTH={least}"]
    return "\n".join(lines) + "\n"
