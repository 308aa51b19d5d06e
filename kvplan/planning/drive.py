"""The drive of a disk tier: the one that was probed, or a larger one of the same speed that is still to be bought."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from kvplan.documents import Disk, Finding, Policy
from kvplan.engines.configs.common import SHELL_PLACE
from kvplan.planning.links import Rates
from kvplan.units import show_bytes

DISK_SHARE = 0.85  # of a drive that is filled at most


def stated_drive(rates: Rates | None, policy: Policy) -> tuple[Rates | None, list[Finding]]:
    """The drive to plan with, and what is said where --disk asks for more than the probed one has.

    More than the whole drive means another one: rates are those measured, the size is the stated one, and what the
    probed drive tells of its wear is left out.
    """
    asked = policy.disk_bytes
    if rates is None or rates.disk is None or asked is None or policy.forbid_disk:
        return rates, []
    drive, room = rates.disk, int((rates.disk.free_bytes + policy.disk_own_bytes) * DISK_SHARE)
    if asked > drive.total_bytes:
        text = (
            f"--disk {show_bytes(asked)} is more than the {show_bytes(drive.total_bytes)} of the probed drive at "
            f"{drive.path}: the plan is for another drive, empty and as quick as this one, of which 85 % are filled; "
            "check its sheet for sustained writes and rated endurance"
        )
        other = structs.replace(
            drive,
            path=SHELL_PLACE,
            total_bytes=asked,
            free_bytes=max(0, asked - policy.disk_own_bytes),
            model=None,
            rated_endurance_bytes=None,
            members=(),
        )
        found = replace(rates, disk=other, source=f"{rates.source}, taken for a larger drive")
        return found, [Finding(severity="warning", code="drive-differs", text=text)]
    if asked > room:
        text = (
            f"--disk {show_bytes(asked)} is more than may be filled of the drive at {drive.path}: {show_bytes(room)}, "
            f"85 % of the {show_bytes(drive.free_bytes)} free there"
        )
        return rates, [Finding(severity="warning", code="disk-capped", text=text)]
    return rates, []


def is_stated(drive: Disk) -> bool:
    """Whether a drive is one to be bought, not the probed one."""
    return drive.path == SHELL_PLACE
