"""Schedules out: a request log as a file that load generators play against a live server, off and on.

`schedule_of` and `write` make the file. What the results say is kvplan/compare.py.
"""

from __future__ import annotations

from kvplan.replaying.lines import Form, Request, write
from kvplan.replaying.prompts import Prompts, Symbols, symbols_of
from kvplan.replaying.schedule import Options, Schedule, schedule_of

__all__ = ["Form", "Options", "Prompts", "Request", "Schedule", "Symbols", "schedule_of", "symbols_of", "write"]
