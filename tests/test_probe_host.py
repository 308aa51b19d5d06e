"""The inventory of this machine, and of machines described by a copy of their /proc and /sys."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvplan import probe, probe_host
from kvplan.documents import CgroupLevel, ProbeOptions
from kvplan.errors import KvplanError
from kvplan.probing import cgroup, nvml
from kvplan.units import GiB, KiB

V2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
NO_LIMIT_V1 = str(0x7FFFFFFFFFFFF000)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(root: Path, total: float, available: float, files: dict[str, str] | None = None) -> Path:
    """A root with `total` and `available` GiB of memory."""
    kib = [int(size * GiB) // KiB for size in (total, available, available)]
    text = "MemTotal: {:>12} kB\nMemFree: {:>12} kB\nMemAvailable: {:>12} kB\n".format(*kib)
    return tree(root, {"proc/meminfo": text, "proc/cpuinfo": "model name\t: Example CPU\n", **(files or {})})


def gib(count: float) -> str:
    return f"{int(count * GiB)}\n"


def group(limit: str, current: float, files: float, directory: str = "sys/fs/cgroup") -> dict[str, str]:
    half = int(files * GiB) // 2
    return {
        f"{directory}/memory.max": f"{limit}\n",
        f"{directory}/memory.current": gib(current),
        f"{directory}/memory.stat": f"anon 5\ninactive_file {half}\nactive_file {half}\n",
    }


def test_page_cache_in_a_container_does_not_count_as_used(tmp_path: Path) -> None:
    """Limit 70, current 69.55, of which 68.9 clean file pages: 69.35 GiB are usable, not 0.45."""
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2, **group(str(70 * GiB), 69.55, 68.9)}
    host = probe_host.inventory(machine(tmp_path, 256, 200, files), {})
    assert host.usable_memory_bytes / GiB == pytest.approx(69.35, abs=0.001)
    assert host.memory_total_bytes == 256 * GiB


def test_a_container_is_not_its_host(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2, **group(str(150 * GiB), 0, 0)}
    assert probe_host.inventory(machine(tmp_path, 692, 692, files), {}).usable_memory_bytes == 150 * GiB


def test_no_limit_leaves_what_the_host_has(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2, **group("max", 3, 1)}
    host = probe_host.inventory(machine(tmp_path, 692, 600, files), {})
    assert host.usable_memory_bytes == 600 * GiB
    assert [level.limit_bytes for level in host.cgroups] == [None]


def test_version_1_with_its_sentinel_and_a_limit_above(tmp_path: Path) -> None:
    leaf, parent = "sys/fs/cgroup/memory/docker/abc", "sys/fs/cgroup/memory/docker"
    stat = f"inactive_file 1\ntotal_inactive_file {4 * GiB}\ntotal_active_file {GiB}\ntotal_dirty {GiB}\n"
    files = {
        "proc/self/cgroup": "9:memory:/docker/abc\n8:cpu,cpuacct:/docker/abc\n0::/elsewhere\n",
        "proc/self/mountinfo": V1,
        f"{leaf}/memory.limit_in_bytes": NO_LIMIT_V1,
        f"{leaf}/memory.usage_in_bytes": gib(2),
        f"{parent}/memory.limit_in_bytes": gib(32),
        f"{parent}/memory.usage_in_bytes": gib(20),
        f"{parent}/memory.stat": stat,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
    }
    host = probe_host.inventory(machine(tmp_path, 58, 50, files), {})
    assert [(level.path, level.limit_bytes) for level in host.cgroups] == [
        (f"/{leaf}", None),
        (f"/{parent}", 32 * GiB),
        ("/sys/fs/cgroup/memory", None),
    ]
    assert host.cgroups[1].reclaimable_bytes == 4 * GiB  # five of file pages, one of them dirty
    assert host.usable_memory_bytes == (32 - 20 + 4) * GiB


def test_every_level_of_version_2_counts_the_tightest_binds(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/kubepods/pod1/engine\n",
        "proc/self/mountinfo": V2,
        **group("max", 10, 0, "sys/fs/cgroup/kubepods/pod1/engine"),
        **group(str(64 * GiB), 40, 8, "sys/fs/cgroup/kubepods/pod1"),
        **group(str(400 * GiB), 300, 0, "sys/fs/cgroup/kubepods"),
        "sys/fs/cgroup/kubepods/pod1/memory.high": gib(60),
    }
    host = probe_host.inventory(machine(tmp_path, 512, 200, files), {})
    assert [level.limit_bytes for level in host.cgroups] == [None, 60 * GiB, 400 * GiB]
    assert host.usable_memory_bytes == (60 - 40 + 8) * GiB


@pytest.mark.parametrize(
    ("path", "shown", "below"),
    [
        ("/docker/abc", "/docker/abc", ""),
        ("/docker/abc/inner", "/docker/abc", "inner"),
        ("/docker/abcdef", "/docker/abc", ""),
        ("/../other", "/", ""),
        ("/a/b", "/", "a/b"),
    ],
)
def test_a_group_is_found_below_what_the_mount_shows(path: str, shown: str, below: str) -> None:
    assert cgroup._below(path, shown) == below


def test_usage_above_the_limit_leaves_nothing_rather_than_less() -> None:
    level = CgroupLevel(path="/", limit_bytes=GiB, current_bytes=2 * GiB, reclaimable_bytes=None)
    assert cgroup.usable_bytes(10 * GiB, [level]) == 0
    assert cgroup.usable_bytes(10 * GiB, []) == 10 * GiB


def test_this_machine() -> None:
    host = probe_host.inventory()
    assert 0 < host.usable_memory_bytes <= host.memory_available_bytes <= host.memory_total_bytes
    assert host.memory_total_bytes == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.02)
    assert host.cores == len(os.sched_getaffinity(0))
    assert host.kernel == os.uname().release
    assert host.cpu


def test_numa_nodes(tmp_path: Path) -> None:
    node = "Node {0} MemTotal:       {1} kB\nNode {0} MemFree:        {2} kB\n"
    files = {
        "sys/devices/system/node/node1/meminfo": node.format(1, 1000, 400),
        "sys/devices/system/node/node1/cpulist": "4-7\n",
        "sys/devices/system/node/node0/meminfo": node.format(0, 2000, 500),
        "sys/devices/system/node/node0/cpulist": "0-3\n",
    }
    nodes = probe_host.inventory(machine(tmp_path, 3, 1, files), {}).numa
    assert [(n.node, n.total_bytes, n.free_bytes, n.cpus) for n in nodes] == [
        (0, 2000 * KiB, 500 * KiB, "0-3"),
        (1, 1000 * KiB, 400 * KiB, "4-7"),
    ]


def test_gpu_memory_that_is_a_node_is_not_the_hosts(tmp_path: Path) -> None:
    """GH200: 3 GiB of the processor's and 1 GiB of the GPU's, all of which the kernel counts as one host's."""
    node = "Node {0} MemTotal: {1} kB\nNode {0} MemFree: {2} kB\n"
    gpu = "proc/driver/nvidia/gpus/0009:01:00.0/numa_status"
    files = {
        "sys/devices/system/node/node0/meminfo": node.format(0, 3 << 20, 2 << 20),
        "sys/devices/system/node/node0/cpulist": "0-71\n",
        "sys/devices/system/node/node1/meminfo": node.format(1, 1 << 20, 1 << 19),
        "sys/devices/system/node/node1/cpulist": "\n",
        gpu: "Node:            1\nStatus:          online\n",
    }
    host = probe_host.inventory(machine(tmp_path, 4, 3, files), {})
    assert (host.memory_total_bytes, host.memory_available_bytes) == (3 * GiB, 5 * GiB // 2)
    assert host.usable_memory_bytes == 5 * GiB // 2
    assert [node.node for node in host.numa] == [0]
    tree(tmp_path, {gpu: "Node:            -1\nStatus:          not available\n"})
    host = probe_host.inventory(tmp_path, {})
    assert (host.memory_total_bytes, len(host.numa)) == (4 * GiB, 2)


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"proc/1/cgroup": "1:name=systemd:/kubepods/x\n"}, {}, "kubepods"),
        ({"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n", ".dockerenv": ""}, {}, "wsl2"),
    ],
)
def test_container(tmp_path: Path, files: dict[str, str], environment: dict[str, str], kind: str | None) -> None:
    assert probe_host.inventory(machine(tmp_path, 1, 1, files), environment).container == kind


def test_processors_without_a_name(tmp_path: Path) -> None:
    machine(tmp_path, 1, 1, {"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"})
    assert probe_host.inventory(tmp_path, {}).cpu.endswith("(CPU implementer 0x41, CPU part 0xd4f)")


def test_no_proc_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match=r"proc/meminfo: No such file or directory: probing needs Linux"):
        probe_host.inventory(tmp_path, {})


# ---- GPUs


class NVMLError(Exception):
    pass


def fake_nvml(**more: Any) -> ModuleType:
    """nvidia-ml-py as it answers on a host with one card; anything not named here is not supported."""

    def unsupported(*_: Any) -> Any:
        raise NVMLError("Not Supported")

    module = ModuleType("pynvml")
    answers: dict[str, Any] = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByPciBusId": lambda pci: 0,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 * GiB, free=79 * GiB),
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H100",
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId="00000000:3B:00.0"),
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": unsupported,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
    }
    for name, value in {**answers, **more}.items():
        setattr(module, name, value)
    return module


@pytest.fixture
def gpu_machine(tmp_path: Path) -> Path:
    return machine(
        tmp_path,
        512,
        500,
        {"proc/driver/nvidia/version": "", "sys/bus/pci/devices/0000:3b:00.0/numa_node": "1\n"},
    )


def test_a_gpu_by_nvml_keeps_what_is_not_told_unknown(gpu_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    monkeypatch.setattr(nvml.importlib.util, "find_spec", lambda name: True)
    host = probe_host.inventory(gpu_machine, {})
    (gpu,) = host.gpus
    assert host.gpu_status == "1 GPU"
    assert (gpu.name, gpu.pci, gpu.numa_node) == ("NVIDIA H100", "0000:3b:00.0", 1)
    assert (gpu.link_generation, gpu.link_width, gpu.max_link_width) == (5, None, None)
    assert (gpu.driver, gpu.compute_capability, gpu.total_bytes) == ("580.65.06", "9.0", 80 * GiB)


def test_link_state_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = fake_nvml(
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x41,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=7), SimpleNamespace(pid=8)],
        nvmlDeviceGetC2cModeInfoV1=lambda handle: SimpleNamespace(isC2cEnabled=1),
    )
    monkeypatch.setitem(sys.modules, "pynvml", busy)
    monkeypatch.setattr(nvml.importlib.util, "find_spec", lambda name: True)
    state = nvml.link_state("0000:3b:00.0")
    assert state == nvml.LinkState(
        generation=5, width=None, throttled=("hot (hardware)",), other_processes=1, coherent=True
    )


def no_init() -> None:
    raise NVMLError("Driver/library version mismatch")


@pytest.mark.parametrize(
    ("module", "torch", "status"),
    [
        (None, False, "no GPU: nvidia-ml-py is not installed, and torch is not installed: install kvplan[gpu]"),
        (
            fake_nvml(nvmlInit=no_init),
            False,
            "no GPU: NVML: Driver/library version mismatch, and torch is not installed: install kvplan[gpu]",
        ),
        (fake_nvml(nvmlDeviceGetCount=lambda: 0), False, "no GPU: the driver shows none to this process"),
        (None, True, "no GPU: nvidia-ml-py is not installed, and torch 9.9 finds no usable CUDA device"),
    ],
)
def test_why_there_is_no_gpu(
    gpu_machine: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType | None, torch: bool, status: str
) -> None:
    installed = {"pynvml": module is not None, "torch": torch}
    monkeypatch.setattr(nvml.importlib.util, "find_spec", lambda name: installed[name] or None)
    if module is not None:
        monkeypatch.setitem(sys.modules, "pynvml", module)
    blind = SimpleNamespace(__version__="9.9", cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", blind)
    assert probe_host.inventory(gpu_machine, {}).gpu_status == status


def test_cuda_that_does_not_start_is_no_gpu_and_says_why(gpu_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(index: int) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors …")

    monkeypatch.setattr(nvml.importlib.util, "find_spec", lambda name: True if name == "torch" else None)
    calls = {"is_available": lambda: True, "device_count": lambda: 1, "get_device_properties": lost}
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="9.9", cuda=SimpleNamespace(**calls)))
    assert probe_host.inventory(gpu_machine, {}).gpu_status == (
        "no GPU: nvidia-ml-py is not installed, and CUDA does not start: CUDA error: all CUDA-capable devices are busy "
        "or unavailable"
    )


def test_a_host_without_a_gpu_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, 8, 8)
    monkeypatch.setattr(probe_host, "inventory", lambda real=probe_host.inventory: real(root, {}))
    found = probe.measure(ProbeOptions(only=("gpu", "host")))
    assert found.host.gpu_status == "no GPU: no GPU driver on this machine"
    assert [finding.code for finding in found.findings] == ["no-gpu"]
    assert found.links == ()
    for parts in (("gpu",), ("contention",), ("gpu", "contention")):
        with pytest.raises(KvplanError, match=f"--only {', '.join(parts)}: no GPU: no GPU driver .*nothing could be"):
            probe.plan_of(ProbeOptions(only=parts))
    assert probe.measure(ProbeOptions()).host == found.host  # what this host is was asked for


def test_the_inventory_alone_imports_no_torch() -> None:
    import subprocess

    code = (
        "import sys; from kvplan import probe; from kvplan.documents import ProbeOptions\n"
        "probe.measure(ProbeOptions(only=('host',))); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
