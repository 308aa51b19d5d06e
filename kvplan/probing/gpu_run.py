"""One GPU being measured: its buffers and streams, the sweep over cells, and what could not be measured and why."""

from __future__ import annotations

import dataclasses
import time
from contextlib import suppress

import numpy as np
from msgspec.structs import replace

from kvplan.documents import Contention, GpuDevice, Host, KvMove, Link, Pipeline
from kvplan.errors import KvplanError
from kvplan.probing import cuda, gpu_links, nvml
from kvplan.probing.affinity import cpus_near, far_nodes, node_of, running_on
from kvplan.probing.cuda import Gpu, HostArray
from kvplan.probing.gpu_cells import BOTH_WAYS, Cell, cells
from kvplan.probing.gpu_copies import Copies, Lane, Seen
from kvplan.probing.gpu_extras import Extras, Rig, beside_decoding, through_drive
from kvplan.probing.interrupts import held
from kvplan.probing.mechanisms import Mechanism
from kvplan.probing.pinning import Arena, pin
from kvplan.progress import Progress
from kvplan.units import MiB, show_duration, show_rate

_LOAD_TRAINS = 16
# Beyond its time a sweep may take half of it more, within these; what is left then is left out and named.
_LEAST_GRACE_S, _GRACE_S = 10.0, 30.0
# Cells that take more than their share of the time make later ones copy less.
_SLOW, _PACE_S, _LEAST_TRAIN = 1.5, 0.5, 32 * MiB


class Run:
    """One GPU with a pair of buffers of each kind of host memory. `cpus` are all processors that the process had."""

    def __init__(
        self, gpu: Gpu, device: GpuDevice | None, arena: Arena, size: int, seed: int, host: Host, cpus: set[int]
    ) -> None:
        self.gpu, self.device, self.arena, self.size, self.host, self.cpus = gpu, device, arena, size, host, cpus
        self.name = f"gpu{arena.report.gpu}"
        self.node: int | None = None
        self.random = np.random.default_rng(seed)
        self.base = cuda.base_words(size)
        self.state, self.asked = nvml.LinkState(), False
        self.most = size
        self.missing: dict[str, str] = {}
        self.refused: set[Mechanism] = set()
        pageable: HostArray = np.zeros(2 * size, dtype=np.uint8)
        hosts = {False: (pageable[:size], pageable[size:])}
        pair = arena.pair(size)
        if pair is not None:
            hosts[True] = pair
            asked = device.numa_node if device and cpus_near(device, host) else None
            found = node_of(pair[0].ctypes.data)
            self.node = asked if found is None else found
        self.streams = {way: gpu.stream() for way in BOTH_WAYS}
        memory = {way: gpu.allocate(size) for way in BOTH_WAYS}
        self.lanes = {
            (pinned, way): Lane(direction=way, host=buffer, memory=memory[way], stream=self.streams[way])
            for pinned, buffers in hosts.items()
            for way, buffer in zip(BOTH_WAYS, buffers, strict=True)
        }

    def settle(self) -> None:
        """Wait for every copy under way, whatever interrupts: host memory may not be given back before."""
        with held():
            for stream in self.streams.values():
                with suppress(KvplanError):  # a device that failed has no copies under way
                    self.gpu.wait(stream)

    def rig(self) -> Rig | None:
        """The page-locked lanes, with the mechanisms that worked; None where no memory could be page-locked."""
        lanes = {way: lane for (pinned, way), lane in self.lanes.items() if pinned}
        if not lanes:
            return None
        return Rig(
            gpu=self.gpu,
            index=self.arena.report.gpu,
            lanes=lanes,
            base=self.base,
            random=self.random,
            mechanisms=tuple(name for name in self.gpu.mechanisms if name not in self.refused),
        )

    def sweep(
        self, granules: tuple[int, ...], moves: tuple[KvMove, ...], seconds: float, progress: Progress
    ) -> list[Link]:
        """Every cell in about `seconds`. Raises KvplanError where not even the first can be measured.

        A mechanism that the driver refuses is left out. Any other failure ends the sweep: what was measured stands.
        """
        until = time.monotonic() + seconds
        todo = [
            cell
            for cell in cells(granules, self.size, self.gpu.mechanisms, moves)
            if (cell.pinned, cell.direction) in self.lanes
        ]
        links: list[Link] = []
        for position, planned in enumerate(todo):
            if planned.mechanism in self.refused:
                continue
            cell = self._beside_what_works(planned)
            left = until - time.monotonic()
            if left < -min(_GRACE_S, max(_LEAST_GRACE_S, seconds / 2)):
                why = f"no time left: {show_duration(seconds)} for {len(todo)} cells, give a longer budget"
                self.missing[f"{len(todo) - position} cells from {cell.words} on"] = why
                return links
            share = position / len(todo)
            progress(f"{self.name}: {cell.words}", share)
            mine = max(0.0, left) / (len(todo) - position)
            try:
                seen = self._cell(cell, mine)
            except KvplanError as error:
                if not links:
                    raise
                if cell.mechanism == "loop":
                    self.missing[f"{len(todo) - position} cells from {cell.words} on"] = str(error)
                    return links
                self.missing[f"copies by {cell.mechanism}"] = str(error)
                self.refused.add(cell.mechanism)
                continue
            if left - (until - time.monotonic()) > max(_SLOW * mine, _PACE_S):
                self.most = max(_LEAST_TRAIN, self.most // 2)
            links.append(gpu_links.link(self.name, self.node, cell, seen))
            progress(f"{self.name}: {cell.words}: {show_rate(links[-1].p50_bytes_per_s)}", share)
        return links

    def _beside_what_works(self, cell: Cell) -> Cell:
        """The cell with its opposite direction by one call a piece, where the driver refuses that one's mechanism."""
        if cell.beside is None or cell.beside.mechanism not in self.refused:
            return cell
        return dataclasses.replace(cell, beside=replace(cell.beside, mechanism="loop"))

    def _cell(self, cell: Cell, seconds: float) -> Seen:
        lane = self.lanes[cell.pinned, cell.direction]
        opposite = self.lanes[cell.pinned, "d2h" if cell.direction == "h2d" else "h2d"] if cell.duplex else None
        copies = Copies(
            self.gpu, lane, cell.granule, opposite, self.base, self.random, cell.mechanism, self.most, cell.beside
        )
        seen = copies.measure(seconds)
        if self.device is not None and self.device.pci is not None and not self.asked:
            self.asked = True
            copies.load(_LOAD_TRAINS)
            self.state = nvml.link_state(self.device.pci)
            self.gpu.wait(lane.stream)
        return seen

    def remote(self, seconds: float, progress: Progress) -> list[Link]:
        """The largest copies both ways to memory of every node that is not the GPU's own; none where there is none.

        Flagged, since no engine should put its cache there: it shows what a wrong placement costs.
        """
        nodes = far_nodes(self.device, self.host, self.cpus)
        links: list[Link] = []
        for node, cpus in nodes if self.rig() else ():
            progress(f"{self.name}: memory of node {node}", None)
            try:
                links += self._node(node, cpus, seconds / len(nodes))
            except KvplanError as error:
                self.missing[f"memory of node {node}"] = str(error)
        return links

    def _node(self, node: int, cpus: set[int], seconds: float) -> list[Link]:
        links = []
        with running_on(cpus), pin(self.gpu, self.arena.report.gpu, 2 * self.size, chunk=self.size) as arena:
            pair = arena.pair(self.size)
            there = node_of(pair[0].ctypes.data) if pair else None
            if there not in (None, node):
                self.missing[f"memory of node {node}"] = f"this process is given memory of node {there} instead"
                return []
            try:
                for way, buffer in zip(BOTH_WAYS, pair or (), strict=False):
                    lane = dataclasses.replace(self.lanes[True, way], host=buffer)
                    cell = Cell(direction=way, granule=len(buffer))
                    seen = Copies(self.gpu, lane, cell.granule, None, self.base, self.random).measure(seconds / 2)
                    links.append(gpu_links.link(self.name, node, cell, seen, remote=True))
            finally:
                self.settle()
        if pair is None:
            self.missing[f"memory of node {node}"] = f"could not be page-locked ({arena.report.stopped})"
        return links

    def beside_decoding(
        self, granules: tuple[int, ...], moves: tuple[KvMove, ...], seconds: float, progress: Progress
    ) -> tuple[Contention, ...]:
        """Copies beside a load like decoding; nothing where no memory is page-locked or the load cannot be made."""
        rig = self.rig()
        if rig is None:
            self.missing["copies beside decoding"] = "no host memory is page-locked"
            return ()
        found, missing = beside_decoding(rig, granules, moves, seconds, progress)
        self.missing.update(missing)
        return found

    def through_drives(self, extras: Extras, progress: Progress) -> tuple[tuple[Pipeline, ...], int]:
        """Stores to and loads from each drive, and the bytes written; a drive that fails is named."""
        rig, found, written = self.rig(), list[Pipeline](), 0
        for folder in extras.folders:
            if rig is None:
                self.missing[f"from and to {folder}"] = "no host memory is page-locked"
                continue
            try:
                more, size = through_drive(rig, folder, extras.pass_bytes, progress)
            except KvplanError as error:
                self.missing[f"from and to {folder}"] = str(error)
            else:
                found, written = [*found, *more], written + size
        return tuple(found), written
