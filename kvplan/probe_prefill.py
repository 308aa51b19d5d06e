"""What recomputing a prefix costs for one model: measured without its weights on this device, or on a running server.

The model is cut to a few layers of each kind, built with random weights, and the times are summed over all its layers.
See docs/prefill.md for the method and what it was checked against.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvplan.documents import Finding, Host, Prefill, PrefillPoint
from kvplan.errors import KvplanError
from kvplan.probing import cutmodel, ttft
from kvplan.probing.cutmodel import MORE, Pair, Whole
from kvplan.probing.passes import OutOfMemory, Passes, TorchPasses, pass_bytes
from kvplan.probing.prefill_fit import Fit, fit
from kvplan.progress import Progress, silent
from kvplan.units import show_bytes, show_duration

LADDER = tuple(2**power for power in range(7, 18))  # 128 to 131,072 tokens
_PAIRS_FROM = 512
_SHARES = (2, 4)  # what is left to prefill behind a cached prefix: a half and a quarter of the length
_ROUNDS, _MOST_ROUNDS = 3, 9
_LONG_ENOUGH_S = 0.3
_ROOM = 0.8  # of free memory, for weights; passes share what is left with the host
_NOTABLE = 0.15
_ENOUGH = 4  # points that three numbers cannot simply pass through


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillResult:
    """The measured cost, and what a reader should know beyond the figures."""

    prefill: Prefill
    findings: tuple[Finding, ...]


def measure(
    raw: Any,
    model: str,
    device: Passes,
    *,
    seconds: float,
    tokens: Sequence[int] = (),
    longest: int | None = None,
    rounds: int = _ROUNDS,
    progress: Progress = silent,
) -> PrefillResult:
    """Measure the prefill of the model with config `raw` in `seconds`, at `tokens` or at doubling lengths.

    The time counts from when the cut models are built. It is exceeded by no more than the pass that runs at its end;
    one round of the first length is measured whatever it takes.

    Raises KvplanError where the model cannot be cut, does not fit, or where no length could be measured.
    """
    progress(f"prefill of {model}: laying out its layers", 0.0)
    busy = _others_at_work(device)
    whole = cutmodel.read(raw, model)
    changes, notes = _fitting(whole, device)
    run = _Run(whole, cutmodel.pairs(whole, **changes), device, seconds, rounds, progress)
    run.build()
    wanted = sorted(set(tokens)) or [n for n in LADDER if longest is None or n <= longest]
    for length in wanted:
        if not run.length(length, asked=bool(tokens)):
            break
    return run.result(model, (*whole.notes, *notes), busy)


def _others_at_work(device: Passes) -> tuple[Finding, ...]:
    """A warning where this processor is busy before it is measured: threads that wait for each other then crawl."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if device.gpus is not None or load < cores / 2:
        return ()
    text = f"{load:.1f} threads were at work on {cores} processors before prefill was measured: measure an idle host"
    return (Finding(severity="warning", code="prefill-disturbed", text=text),)


def _fitting(whole: Whole, device: Passes) -> tuple[dict[str, int], tuple[str, ...]]:
    """Settings with which the cut models fit into the device, and what that changes. Raises KvplanError if none do."""
    free, now = int(device.free_bytes() * _ROOM), cutmodel.experts(whole.config)
    changes: dict[str, int] = {}
    most = now or 0
    while True:
        needed = _weights(cutmodel.pairs(whole, **changes)) * device.element_bytes
        if needed <= free:
            break
        most //= 2
        fewer = cutmodel.fewer_experts(whole.config, most) if most else {}
        if not fewer or fewer == changes:
            raise KvplanError(
                f"{whole.name}: cut to a few layers it still takes {show_bytes(needed)}, and {device.device} can spare "
                f"{show_bytes(free)}: {cutmodel.INSTEAD}"
            )
        changes = fewer
    kept = next(iter(changes.values()), now)
    return changes, (f"{kept} of {now} experts a layer, as many to a token as in full",) if changes else ()


def _weights(pairs: Sequence[Pair]) -> int:
    """Parameters of all the cut models together; each keeps its embeddings until it borrows the first one's."""
    configs = {picks: config for pair in pairs for picks, config in _members(pair)}
    return sum(cutmodel.parameters(config) for config in configs.values())


def _members(pair: Pair) -> tuple[tuple[tuple[int, ...], Any], ...]:
    return ((pair.base, pair.base_config), (pair.more, pair.more_config))


class _Run:
    """The cut models on the device, and the lengths measured so far."""

    def __init__(
        self, whole: Whole, pairs: tuple[Pair, ...], device: Passes, seconds: float, rounds: int, progress: Progress
    ) -> None:
        self.whole, self.pairs, self.device, self.progress = whole, pairs, device, progress
        self.seconds, self.rounds = seconds, rounds
        self.began = self.until = time.monotonic()
        self.pace_s, self.hurried = 0.0, 0  # of a round, a token; cells with fewer rounds than wanted
        self.models: dict[tuple[int, ...], Any] = {}
        self.points: list[PrefillPoint] = []
        self.findings: list[Finding] = []
        self.last_s = 0.0

    def build(self) -> None:
        """Build each cut model once; all borrow the embeddings of the first. Raises KvplanError if they do not fit."""
        first = None
        for pair in self.pairs:
            for picks, config in _members(pair):
                if picks in self.models:
                    continue
                self.progress(f"prefill of {self.whole.name}: building {len(picks)} layers, {pair.kind.words}", 0.0)
                try:
                    self.models[picks] = self.device.build(config, first)
                except OutOfMemory as error:
                    raise KvplanError(f"{self.whole.name}: {error} on {self.device.device}") from None
                first = first or self.models[picks]
        self.began = time.monotonic()
        self.until = self.began + self.seconds

    def length(self, total: int, *, asked: bool) -> bool:
        """Measure one length, from nothing and behind cached prefixes; False where it or the next is beyond reach."""
        began = time.monotonic()
        needed = pass_bytes(self.whole.config, total, 0, self.device.element_bytes)
        if needed > self.device.free_bytes():
            self._say("info", "prefill-memory", f"a pass over {total:,} tokens may take {show_bytes(needed)}: left out")
            return False
        # Twice the length takes up to four times the time; of asked lengths, what fits is measured.
        if not asked and self.points and began + 3 * self.last_s > self.until:
            return self._late(f"{total:,} tokens and more")
        shares = _SHARES if total >= _PAIRS_FROM else ()
        try:
            for tokens in (total, *(total // share for share in shares)):
                if not self._fits(tokens, total - tokens):
                    return self._late(f"{_cell_name(tokens, total - tokens)} and more")
                self._cell(tokens, total - tokens)
        except OutOfMemory as error:
            self._say("info", "prefill-memory", f"{total:,} tokens do not fit into {self.device.device}: {error}")
            return False
        self.last_s = time.monotonic() - began
        return True

    def _late(self, what: str) -> bool:
        self._say("info", "prefill-time", f"{what} were left out: give more time with --budget")
        return False

    def _fits(self, tokens: int, prefix: int) -> bool:
        """Whether the prefix, a pass to warm up and one round fit in the time left, a token as quick as before."""
        return time.monotonic() + self.pace_s * (prefix + 2 * tokens) <= self.until or not self.pace_s

    def _cell(self, tokens: int, prefix: int) -> None:
        """Rounds over all cut models in turn, so that a slow moment meets those it is the difference of alike."""
        name = f"prefill of {self.whole.name}: {_cell_name(tokens, prefix)}"
        self.progress(name, min(1.0, (time.monotonic() - self.began) / max(self.until - self.began, 1e-9)))
        behind = {picks: self.device.prefilled(model, prefix) if prefix else None for picks, model in self._all()}
        for picks, model in self._all():
            self.device.seconds(model, tokens, behind[picks])  # warms caches, allocations and clocks
        times: dict[tuple[int, ...], list[float]] = {picks: [] for picks, _ in self._all()}
        began = now = time.monotonic()
        done = 0
        while done < self.rounds or (done < _MOST_ROUNDS and now < began + _LONG_ENOUGH_S):
            if done and now + self.pace_s * tokens > self.until:
                break
            for picks, model in self._all():
                times[picks].append(self.device.seconds(model, tokens, behind[picks]))
            done, now = done + 1, time.monotonic()
            self.pace_s = (now - began) / done / tokens
        self.hurried += done < self.rounds
        seconds = self._sum({picks: self.device.typical(spent) for picks, spent in times.items()})
        if seconds is None:
            self._say("warning", "prefill-unclear", f"{tokens:,} tokens: more layers took no more time: left out")
            return
        self.points.append(PrefillPoint(tokens=tokens, prefix_tokens=prefix, seconds=seconds))
        self.progress(f"{name}: {show_duration(seconds)}")

    def _all(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        return iter(self.models.items())

    def _sum(self, times: dict[tuple[int, ...], float]) -> float | None:
        """Seconds of the whole model: one base, and for each kind as many more of its layers as the base lacks.

        None where some layers seem to take no time.
        """
        base = self.pairs[0].base
        total = times[base]
        for pair in self.pairs:
            each = (times[pair.more] - times[pair.base]) / MORE
            if each <= 0:
                return None
            total += pair.missing(base) * each
        return total

    def _say(self, severity: Literal["info", "warning"], code: str, text: str) -> None:
        self.findings.append(Finding(severity=severity, code=code, text=f"prefill of {self.whole.name}: {text}"))

    def result(self, model: str, notes: tuple[str, ...], more: tuple[Finding, ...]) -> PrefillResult:
        """Fit what was measured. Raises KvplanError where nothing was."""
        if not self.points:
            raise KvplanError("; ".join(finding.text for finding in self.findings) or f"{model}: nothing was measured")
        if notes:
            self._say("info", "prefill-differs", "; ".join(notes))
        if self.hurried:
            text = f"{self.hurried} cells were timed in fewer than {self.rounds} rounds: give more time with --budget"
            self._say("info", "prefill-hurried", text)
        kinds = ", ".join(f"{len(pair.kind.layers)} of {pair.kind.words}" for pair in self.pairs)
        source = f"cut to 1 and 1 + {MORE} layers, random weights, summed over {kinds}; {self.device.how}"
        prefill = fitted(
            tuple(self.points), model=model, device=self.device.device, source=source, gpus=self.device.gpus
        )
        return PrefillResult(prefill=prefill, findings=(*more, *self.findings, *_fit_findings(prefill)))


def _cell_name(tokens: int, prefix: int) -> str:
    return f"{tokens:,} tokens" + (f" behind {prefix:,}" if prefix else "")


def fitted(points: tuple[PrefillPoint, ...], *, model: str, device: str, source: str, gpus: int | None) -> Prefill:
    """The document of measured points."""
    found: Fit = fit(points)
    return Prefill(
        model=model,
        device=device,
        gpus=gpus,
        t0_s=found.t0,
        a_s_per_token=found.a,
        b_s_per_token_sq=found.b,
        provenance="measured",
        source=source,
        points=points,
        worst_relative_error=found.worst if len(points) >= _ENOUGH else None,
        low_ratio=min(1.0, found.low),
        high_ratio=max(1.0, found.high),
        max_measured_tokens=max(point.tokens + point.prefix_tokens for point in points),
    )


def _fit_findings(prefill: Prefill) -> tuple[Finding, ...]:
    if len(prefill.points) < _ENOUGH:
        text = f"prefill of {prefill.model}: only {len(prefill.points)} points: give more time with --budget"
        return (Finding(severity="warning", code="prefill-few", text=text),)
    error = prefill.worst_relative_error or 0.0
    if error <= _NOTABLE:
        return ()
    text = f"prefill of {prefill.model}: the fit is up to {error:.0%} off what was measured: a plan carries that range"
    return (Finding(severity="warning", code="prefill-fit", text=text),)


def device(host: Host, model: str, progress: Progress = silent) -> Passes:
    """Where to measure: the first CUDA device, or this processor on a host without a GPU.

    Raises KvplanError where torch is absent, or where the host has GPUs that torch cannot use.
    """
    if importlib.util.find_spec("torch") is None:
        raise KvplanError("measuring prefill needs torch: install kvplan[gpu], or measure a server with --server URL")
    progress("starting torch")
    import torch

    if torch.cuda.is_available():
        try:
            return TorchPasses(model, "cuda:0", torch.cuda.get_device_name(0), 0)
        except RuntimeError as error:
            raise KvplanError(f"measuring prefill: CUDA does not start: {str(error).splitlines()[0]}") from None
    if host.gpus:
        raise KvplanError(
            f"this host has {host.gpus[0].name}, and torch {torch.__version__} cannot use it: its processor's prefill "
            "would say nothing of the GPU's; check the driver and kvplan[gpu]"
        )
    return TorchPasses(model, "cpu", f"{host.cpu}, {torch.get_num_threads()} threads", host.usable_memory_bytes)


def measure_server(
    url: str, model: str | None, host: Host, *, seconds: float, tokens: Sequence[int] = (), progress: Progress = silent
) -> PrefillResult:
    """Measure time to first token on a running OpenAI-compatible server, in about `seconds`.

    Raises KvplanError where it does not answer, does not serve `model`, or where no length could be measured.
    """
    server = ttft.connect(url, model)
    found = ttft.lengths(server, tokens or LADDER, seconds=seconds, progress=progress)
    if not found.points:
        raise KvplanError(f"{url}: no length could be measured: {'; '.join(found.refused) or 'no time'}")
    findings = tuple(
        Finding(severity="warning", code="prefill-point-refused", text=f"{url}: {text}") for text in found.refused
    )
    name = _server_device(server, host)
    source = f"time to first token of {server.model} at {url}, one request at a time, unique prompts; {found.how}"
    prefill = fitted(found.points, model=server.model, device=name, source=source, gpus=None)
    return PrefillResult(prefill=prefill, findings=(*findings, *_fit_findings(prefill)))


def _server_device(server: ttft.Server, host: Host) -> str:
    """The host's GPU where the server is on this host and all its GPUs are alike; else just that it is a server."""
    names = {gpu.name for gpu in host.gpus}
    return names.pop() if server.is_local and len(names) == 1 else f"server {server.host}"
