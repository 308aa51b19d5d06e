"""Configurations of serving systems: what a plan becomes in each, and what an existing one reserves."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvplan.documents.common import Bytes, Count, Finding

ConfigForm = Literal["shell", "yaml", "json", "env", "ini"]


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One size as a system is told it, and what it takes of one host.

    `written` is the value's own text, in units of `unit_bytes`. `scope` says what it is the size of: everything
    ("total"), one rank of an engine, one engine, one server process or one pod; `times` of them are on the host.
    `bytes` None: the system bounds it by nothing.
    """

    name: str
    written: str
    unit: str
    unit_bytes: Bytes
    scope: Literal["total", "rank", "server", "engine", "pod"]
    times: Count
    tier: Literal["host", "disk"]
    bytes: Bytes | None
    why: str = ""


class ConfigPart(msgspec.Struct, frozen=True, kw_only=True):
    """One text to paste or to save under `name`."""

    name: str
    form: ConfigForm
    text: str


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's tiers as one serving system is told them. `floor` names the oldest version that these texts are for.

    `host_bytes` and `disk_bytes` are what the plan gives one replica, `host_taken_bytes` and `disk_taken_bytes` what
    the texts take of it (None: the system has no bound of its own).
    """

    system: str
    floor: str
    parts: tuple[ConfigPart, ...]
    knobs: tuple[Knob, ...]
    host_bytes: Bytes
    disk_bytes: Bytes
    host_taken_bytes: Bytes | None
    disk_taken_bytes: Bytes | None
    findings: tuple[Finding, ...] = ()


class ConfigCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What an existing configuration reserves on one host, against a plan's budget or a host's memory.

    `ranks` None: nothing in it counts by rank, or the configuration does not say. The limits are None where nothing to
    hold it against was given, `host_bytes` and `disk_bytes` where the configuration bounds them by nothing.
    """

    system: str
    source: str
    ranks: Count | None
    knobs: tuple[Knob, ...]
    host_bytes: Bytes | None
    disk_bytes: Bytes | None
    against: str | None
    host_limit_bytes: Bytes | None
    disk_limit_bytes: Bytes | None
    ok: bool
    findings: tuple[Finding, ...] = ()
