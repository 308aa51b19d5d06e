"""What this machine is and what it allows, read without any load: memory and its limits, NUMA, GPUs.

Everything is read below `root`, so that a copy of another machine's /proc and /sys can be read as well.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
from collections.abc import Mapping
from pathlib import Path

from kvplan.documents import GpuDevice, Host, NumaNode
from kvplan.errors import KvplanError
from kvplan.probing import cgroup, nvml

_KIB = 1024
# A GPU driver leaves one of these, whatever its vendor: the kernel module, WSL2's, Jetson's or AMD's device.
_DRIVER_SIGNS = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg", "dev/nvmap", "dev/kfd")
_CONTAINERS = ("kubepods", "docker", "containerd", "libpod", "lxc", "garden")


def inventory(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Host:
    """This machine's facts. Raises KvplanError where there is no Linux /proc to read."""
    memory = _meminfo(root / "proc/meminfo")
    nodes = _numa(root / "sys/devices/system/node")
    of_gpus = _gpu_nodes(root)
    # Where GPU memory is a node of its own (GH200 and its like) the kernel counts it as the host's.
    theirs = [node for node in nodes if node.node in of_gpus]
    available = max(0, memory.get("MemAvailable", memory["MemFree"]) - sum(node.free_bytes for node in theirs))
    levels = cgroup.levels(root)
    shm = _shm(root / "dev/shm")
    devices, status = gpus(root)
    return Host(
        system=platform.system(),
        kernel=_line(root / "proc/sys/kernel/osrelease") or platform.release(),
        cpu=_cpu(root),
        cores=len(os.sched_getaffinity(0)),
        memory_total_bytes=memory["MemTotal"] - sum(node.total_bytes for node in theirs),
        memory_available_bytes=available,
        usable_memory_bytes=cgroup.usable_bytes(available, levels),
        container=_container(root, environment),
        cgroups=levels,
        memlock_bytes=_memlock(),
        shm_total_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
        numa=tuple(node for node in nodes if node.node not in of_gpus),
        gpus=devices,
        gpu_status=status,
    )


def _line(path: Path) -> str | None:
    """The first line of a file, None where it is absent, unreadable or empty."""
    try:
        text = path.read_text(errors="replace").strip("\n\0 ")
    except OSError:
        return None
    return text.splitlines()[0].strip() if text else None


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name. Raises KvplanError where the file is absent or has no total."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise KvplanError(f"{path}: {error.strerror}: probing needs Linux with /proc mounted") from None
    sizes = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            sizes[name.split()[-1]] = int(words[0]) * _KIB
    if "MemTotal" not in sizes or "MemFree" not in sizes:
        raise KvplanError(f"{path}: no MemTotal and MemFree: is this Linux's /proc?")
    return sizes


def _cpu(root: Path) -> str:
    """The processor's name; ARM kernels give no name but numbers, which then stand for it."""
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    facts: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    named = facts.get("model name") or facts.get("cpu") or _line(root / "proc/device-tree/model")
    if named:
        return named
    numbers = ", ".join(f"{key} {facts[key]}" for key in ("CPU implementer", "CPU part") if key in facts)
    return f"{platform.machine()} ({numbers})" if numbers else f"unknown {platform.machine()}"


def _memlock() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _shm(path: Path) -> tuple[int, int] | None:
    """(total, free) bytes of the shared-memory file system."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    return facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize


def _numa(path: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for directory in path.glob("node[0-9]*"):
        try:
            sizes = _meminfo(directory / "meminfo")
        except KvplanError:
            continue  # a node without memory, or one hidden from this container
        nodes.append(
            NumaNode(
                node=int(directory.name.removeprefix("node")),
                total_bytes=sizes["MemTotal"],
                free_bytes=sizes["MemFree"],
                cpus=_line(directory / "cpulist") or "",
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.node))


def _gpu_nodes(root: Path) -> set[int]:
    """Memory nodes that are memory of GPUs, by what their driver says; it says -1 where they are none."""
    lines = [_line(path) or "" for path in root.glob("proc/driver/nvidia/gpus/*/numa_status")]
    numbers = [line.removeprefix("Node:").strip() for line in lines if line.startswith("Node:")]
    return {int(number) for number in numbers if number.isdigit()}


def _container(root: Path, environment: Mapping[str, str]) -> str | None:
    """The kind of container or guest, by the traces each leaves; WSL2 first, since page-locking is scarce there."""
    if "microsoft" in (_line(root / "proc/sys/kernel/osrelease") or "").lower():
        return "wsl2"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if environment.get("container"):
        return environment["container"]
    try:
        groups = (root / "proc/1/cgroup").read_text()
    except OSError:
        return None
    return next((name for name in _CONTAINERS if name in groups), None)


def numa_node(pci: str, root: Path = Path("/")) -> int | None:
    """The memory node a PCI device hangs on; the kernel's -1 means unknown."""
    text = _line(root / "sys/bus/pci/devices" / pci / "numa_node")
    return int(text) if text and text.isdigit() else None


def gpus(root: Path = Path("/")) -> tuple[tuple[GpuDevice, ...], str]:
    """The GPUs, and in words what was found or why nothing was.

    NVML is asked first; torch, which takes seconds to import, only where a driver is there and NVML is not.
    """
    if not any((root / sign).exists() for sign in _DRIVER_SIGNS):
        return (), "no GPU: no GPU driver on this machine"
    try:
        found = nvml.devices(lambda pci: numa_node(pci, root))
    except nvml.NoNvml as error:
        return _torch_gpus(str(error))
    return found, _count(found) if found else "no GPU: the driver shows none to this process"


def _count(found: tuple[GpuDevice, ...]) -> str:
    return f"{len(found)} GPU{'s' if len(found) > 1 else ''}"


def _torch_gpus(why: str) -> tuple[tuple[GpuDevice, ...], str]:
    """The GPUs as torch sees them, where NVML cannot be asked for the reason `why`."""
    if importlib.util.find_spec("torch") is None:
        return (), f"no GPU: {why}, and torch is not installed: install kvplan[gpu]"
    import torch

    if not torch.cuda.is_available():
        return (), f"no GPU: {why}, and torch {torch.__version__} finds no usable CUDA device"
    found = []
    try:
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            free, total = torch.cuda.mem_get_info(index)
            capability, name = f"{facts.major}.{facts.minor}", facts.name
            found.append(
                GpuDevice(index=index, name=name, total_bytes=total, free_bytes=free, compute_capability=capability)
            )
    except RuntimeError as error:
        return (), f"no GPU: {why}, and CUDA does not start: {str(error).splitlines()[0]}"
    return tuple(found), f"{_count(tuple(found))} (by torch: {why})"
