"""A request log against a live server: schedules out, and one load generator driven over offload off and on.

`schedule_of` and `write` make a file that load generators play; `played`, `found` and `run` play it with AIPerf, which
is a program beside kvplan and never a part of it. What the results say is kvplan/compare.py.
"""

from __future__ import annotations

from kvplan.replaying.aiperf import Load, found
from kvplan.replaying.lines import Form, Request, write
from kvplan.replaying.played import Played, played
from kvplan.replaying.prompts import Prompts, Symbols, symbols_of
from kvplan.replaying.runs import MANIFEST, Arms, order_of, run
from kvplan.replaying.schedule import Options, Schedule, schedule_of
from kvplan.replaying.server import address

__all__ = [
    "MANIFEST",
    "Arms",
    "Form",
    "Load",
    "Options",
    "Played",
    "Prompts",
    "Request",
    "Schedule",
    "Symbols",
    "address",
    "found",
    "order_of",
    "played",
    "run",
    "schedule_of",
    "symbols_of",
    "write",
]
