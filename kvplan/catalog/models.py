"""The built-in catalogue of models: the config fields that matter, so that gated and air-gapped models can be planned.

models.json beside this file holds the facts; each entry names the Hub repository whose config.json states them and the
date they were read.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model: `config` holds the fields of its published config.json that the cache and the weights depend on.

    `aliases` are other short names, `same` other Hub repositories of the same architecture (instruct versions).
    """

    name: str
    hub_id: str
    date: str
    config: Mapping[str, Any]
    aliases: tuple[str, ...] = ()
    same: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The public page that states the facts."""
        return f"https://huggingface.co/{self.hub_id}"


@cache
def models() -> dict[str, Entry]:
    """Every entry by its name."""
    rows = json.loads(files(__package__).joinpath("models.json").read_text(encoding="utf-8"))
    return {
        row["name"]: Entry(
            name=row["name"],
            hub_id=row["hub_id"],
            date=row["date"],
            config=row["config"],
            aliases=tuple(row.get("aliases", ())),
            same=tuple(row.get("same", ())),
        )
        for row in rows
    }


def find(name: str) -> Entry | None:
    """The entry of a catalogue name or one of its other names, whatever the case; None where there is none."""
    wanted = name.lower()
    entries = models()
    if wanted in entries:
        return entries[wanted]
    return next((entry for entry in entries.values() if wanted in entry.aliases), None)


def find_hub(hub_id: str) -> Entry | None:
    """The entry whose facts hold for a Hub repository; None where there is none."""
    wanted = hub_id.lower()
    return next((entry for entry in models().values() if wanted in map(str.lower, (entry.hub_id, *entry.same))), None)


def nearest(name: str) -> list[str]:
    """Catalogue names that look like `name`, best first; some names where none does."""
    wanted = name.lower().rpartition("/")[2]
    return difflib.get_close_matches(wanted, models(), n=3, cutoff=0.4) or sorted(models())[:3]
