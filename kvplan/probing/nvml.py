"""What the NVIDIA driver says of each GPU, through nvidia-ml-py; every unknown stays None.

Any single question may be refused (virtual GPUs, containers, older drivers), so each is asked on its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvplan.documents import GpuDevice


class NoNvml(Exception):
    """The driver cannot be asked: the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """The link to one GPU and what disturbs it at one moment. Read it under load: an idle link slows down by design.

    `coherent`: host memory is reached over NVLink-C2C (GH200 and its like), of which the PCI Express link says nothing.
    """

    generation: int | None = None
    width: int | None = None
    throttled: tuple[str, ...] = ()
    other_processes: int | None = None
    mig: bool | None = None
    confidential: bool | None = None
    coherent: bool | None = None


# Reasons that lower clocks against the user's wish, by their bit; being idle or capped by a setting is not one.
_THROTTLES = {0x08: "hardware slowdown", 0x20: "hot", 0x40: "hot (hardware)", 0x80: "power brake"}


@contextmanager
def session() -> Iterator[Any]:
    """The initialised pynvml module; raises NoNvml where it is not installed or finds no driver."""
    if importlib.util.find_spec("pynvml") is None:
        raise NoNvml("nvidia-ml-py is not installed")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoNvml(f"NVML: {error}") from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """One answer, or None where this driver, GPU or container does not give it."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _words(value: Any) -> str | None:
    """Text from old bindings (bytes) and new ones (str)."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _device(nvml: Any, index: int, numa_node: Callable[[str], int | None]) -> GpuDevice:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    pci = _ask(nvml, "nvmlDeviceGetPciInfo", handle)
    address = pci_address(_words(pci.busId) or "") if pci is not None else None
    capability = _ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    return GpuDevice(
        index=index,
        name=_words(nvml.nvmlDeviceGetName(handle)) or "unknown",
        total_bytes=memory.total,
        free_bytes=memory.free,
        pci=address,
        numa_node=numa_node(address) if address else None,
        link_generation=_ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        link_width=_ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        max_link_generation=_ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        max_link_width=_ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        driver=_words(_ask(nvml, "nvmlSystemGetDriverVersion")),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
    )


def pci_address(text: str) -> str | None:
    """'0000:3b:00.0', as sysfs writes it, from the driver's '00000000:3B:00.0'. Domains may be longer than 16 bits."""
    domain, _, rest = text.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest else None
    except ValueError:
        return None


def devices(numa_node: Callable[[str], int | None]) -> tuple[GpuDevice, ...]:
    """Every GPU that the driver shows. Raises NoNvml where it cannot be asked."""
    with session() as nvml:
        try:
            return tuple(_device(nvml, index, numa_node) for index in range(nvml.nvmlDeviceGetCount()))
        except nvml.NVMLError as error:
            raise NoNvml(f"NVML: {error}") from None


def _mig(nvml: Any, handle: Any) -> bool | None:
    """Whether the GPU is divided into instances (MIG); a part of one has no link of its own."""
    modes = _ask(nvml, "nvmlDeviceGetMigMode", handle)
    return None if modes is None else bool(modes[0])


def _confidential(nvml: Any) -> bool | None:
    """Whether confidential computing is on: then everything that crosses the link is encrypted on the way."""
    state = _ask(nvml, "nvmlSystemGetConfComputeState")
    feature = getattr(state, "ccFeature", None)
    return None if feature is None else bool(feature)


def _coherent(nvml: Any, handle: Any) -> bool | None:
    """Whether host memory is behind NVLink-C2C."""
    enabled = getattr(_ask(nvml, "nvmlDeviceGetC2cModeInfoV1", handle), "isC2cEnabled", None)
    return None if enabled is None else bool(enabled)


def _throttles(nvml: Any, handle: Any) -> int:
    """The reasons now, under the newer of the two names of the question."""
    found = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    return (found if found is not None else _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)) or 0


def _others(processes: Sequence[Any] | None) -> int | None:
    """Processes on the GPU besides this one, which is one of them; None where the driver does not even show that.

    Counted, not compared by number: in a container the driver gives the numbers that processes have outside of it.
    """
    return len(processes) - 1 if processes else None


def link_state(pci: str) -> LinkState:
    """The link to the GPU at a PCI address, now. Everything is unknown where the driver cannot be asked."""
    try:
        with session() as nvml:
            handle = _ask(nvml, "nvmlDeviceGetHandleByPciBusId", pci.encode())
            if handle is None:
                return LinkState()
            reasons = _throttles(nvml, handle)
            processes = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
            return LinkState(
                generation=_ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
                width=_ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
                throttled=tuple(text for bit, text in _THROTTLES.items() if reasons & bit),
                other_processes=_others(processes),
                mig=_mig(nvml, handle),
                confidential=_confidential(nvml),
                coherent=_coherent(nvml, handle),
            )
    except NoNvml:
        return LinkState()
