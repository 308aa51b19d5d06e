"""Options that travel together: a command takes a dataclass, and the command line shows its fields."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

R = TypeVar("R")


def grouped(command: Callable[..., R]) -> Callable[..., R]:
    """The command with every parameter that is a dataclass of options spread into those options, in its place.

    typer reads a command's options off its signature, which is all that changes: fields come as options with the
    fields' annotations and defaults, and the command is called with the dataclasses made of them.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {one.name: one.annotation for one in signature.parameters.values() if _is_group(one.annotation)}

    @functools.wraps(command)
    def called(**given: Any) -> R:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        return command(**given, **made)

    spread = [part for one in signature.parameters.values() for part in _spread(one, groups)]
    called.__signature__ = signature.replace(parameters=spread)  # type: ignore[attr-defined]
    return called


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def _spread(one: inspect.Parameter, groups: dict[str, Any]) -> list[inspect.Parameter]:
    """The parameters that stand for one: itself, or the fields of its group. By keyword only, as typer passes them."""
    if one.name not in groups:
        return [one.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    hints = get_type_hints(groups[one.name], include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(groups[one.name])
    ]
