"""Kubernetes manifests for vLLM's own tier and for LMCache: a pod whose limit counts the tier once.

A tier in /dev/shm lies in a memory-backed emptyDir: its pages are charged to the pod as they are written, so that the
limit has to hold them, and its sizeLimit has to hold the tier with room to spare.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvplan.documents import Finding, Knob
from kvplan.engines.configs import lmcache, lmcache_server, vllm, vllm_read
from kvplan.engines.configs.common import Asked, Emission, Given, Reading, finding, notes, part
from kvplan.engines.configs.conditions import SHM_SPARE
from kvplan.engines.configs.quantity import quantity, show
from kvplan.engines.configs.source import Command, Source, entries, items, section
from kvplan.errors import KvplanError
from kvplan.units import GiB, show_bytes

FILE = "deployment.yaml"
IMAGES = {"vllm": "vllm/vllm-openai:v0.32.0", "lmcache-server": "lmcache/standalone:nightly"}
_SHM_WORK = 4 * GiB  # what workers exchange through /dev/shm beside a tier
_SERVER_WORK = 2 * GiB
_KINDS = ("Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "LeaderWorkerSet")


def emit(given: Given, system: str, made: Emission) -> Emission:
    """A Deployment of one replica for `system`, whose own texts are `made`."""
    shm = _SHM_WORK
    containers: list[dict[str, Any]] = []
    if system == "lmcache-server":
        words = _flat(lmcache_server.server_words(given))
        # The server opens the engine's GPU memory and owns no GPU itself.
        server_env = [("PYTHONHASHSEED", "0"), ("NVIDIA_VISIBLE_DEVICES", "all")]
        containers.append(_container("lmcache", "lmcache-server", words, server_env, _tier(made) + _SERVER_WORK))
        words, env, inside = _flat(lmcache_server.engine_words(given)), [("PYTHONHASHSEED", "0")], 0
    elif system == "lmcache":
        words = [*_flat(vllm.engine_words(given)), *vllm.transfer("LMCacheConnectorV1")]
        env, inside = [("PYTHONHASHSEED", "0"), *_variables(made)], _tier(made)
    else:
        words, env, inside = _engine(made), [("PYTHONHASHSEED", "0")], _tier(made)
        shm = inside + max(SHM_SPARE, GiB) if inside else _SHM_WORK
    memory = inside + (given.beside_bytes or 0) + _SHM_WORK
    containers.append(_container("vllm", "vllm", words, env, memory, given.ranks))
    found = (*made.findings, *_conditions(given, memory, shm, system))
    text = _manifest(given, made, containers, shm, found)
    return Emission(floor=made.floor, parts=(part(FILE, "yaml", text),), knobs=made.knobs, findings=found)


def _tier(made: Emission) -> int:
    return sum(one.bytes or 0 for one in made.knobs if one.tier == "host")


def _flat(groups: Sequence[Sequence[str]]) -> list[str]:
    return [word for group in groups for word in group]


def _engine(made: Emission) -> list[str]:
    """The words of vLLM's command as it was emitted."""
    text = next(one.text for one in made.parts if one.name == vllm.SCRIPT)
    return list(Source("", text).commands[-1].words)


def _variables(made: Emission) -> list[tuple[str, str]]:
    text = next(one.text for one in made.parts if one.name == lmcache.FILE)
    options = Source("", text).mapping
    return [(f"LMCACHE_{name.upper()}", str(value)) for name, value in options.items()]


def _container(
    name: str, image: str, words: Sequence[str], env: Sequence[tuple[str, str]], memory: int, gpus: int = 0
) -> dict[str, Any]:
    """A container as a mapping: requests equal limits, so that the pod is not the first to be killed."""
    resources: dict[str, Any] = {"memory": show(memory)}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
    return {
        "name": name,
        "image": IMAGES[image],
        "command": list(words),
        "env": [{"name": key, "value": value} for key, value in env],
        "resources": {"requests": resources, "limits": resources},
    }


def _conditions(given: Given, memory: int, shm: int, system: str) -> Iterator[Finding]:
    if given.beside_bytes is None:
        text = "what the engine takes beside the tier is not known: the limit holds the tier and 4 GiB alone"
        yield finding("warning", "memory-limit", text)
    else:
        text = (
            f"the limit is {show(memory)}: the tier once, {show_bytes(given.beside_bytes)} of engine and 4 GiB of spare"
        )
        yield finding("info", "memory-limit", text)
    if system.startswith("lmcache"):
        yield finding("warning", "image", "set images that hold LMCache 0.5.6: the names here are only where to begin")
    text = f"/dev/shm is an emptyDir in memory with a sizeLimit of {show(shm)}; a pod's own default is 64 MiB"
    yield finding("info", "shm-size", text)
    if system == "lmcache-server":
        text = "server and engine share one pod's IPC and /dev/shm, as CUDA memory handles ask"
        yield finding("info", "shared-ipc", text)


def _manifest(
    given: Given, made: Emission, containers: list[dict[str, Any]], shm: int, found: Sequence[Finding]
) -> str:
    disk = given.disk_bytes > 0
    lines = [
        *(f"# {note}" for note in notes(made.floor, made.knobs, found)),
        "apiVersion: apps/v1",
        "kind: Deployment",
        "metadata: {name: kv-cache}",
        "spec:",
        "  replicas: 1",
        "  selector: {matchLabels: {app: kv-cache}}",
        "  template:",
        "    metadata: {labels: {app: kv-cache}}",
        "    spec:",
        "      containers:",
    ]
    for one in containers:
        lines += _container_lines(one, given.folder if disk else None)
    lines += [
        "      volumes:",
        f"      - {{name: shm, emptyDir: {{medium: Memory, sizeLimit: {show(shm)}}}}}",
    ]
    if disk:
        lines.append(f"      - {{name: kv, hostPath: {{path: {json.dumps(given.folder)}, type: DirectoryOrCreate}}}}")
    return "\n".join(lines) + "\n"


def _container_lines(one: Mapping[str, Any], folder: str | None) -> list[str]:
    resources = json.dumps(one["resources"]["limits"])
    lines = [
        f"      - name: {one['name']}",
        f"        image: {one['image']}",
        f"        command: {json.dumps(one['command'])}",
        "        env:",
        *(f"        - {json.dumps(pair)}" for pair in one["env"]),
        "        resources:",
        f"          requests: {resources}",
        f"          limits: {resources}",
        "        volumeMounts:",
        "        - {name: shm, mountPath: /dev/shm}",
    ]
    if folder is not None:
        lines.append(f"        - {{name: kv, mountPath: {json.dumps(folder)}}}")
    return lines


def read(source: Source, asked: Asked) -> Reading:
    """Tiers of every pod in the manifest, each held against its container's limit and its /dev/shm."""
    pods = [pod for document in source.documents for pod in _pods(document, source.name)]
    if not pods:
        raise KvplanError(f"{source.name}: no pod: kinds that have one are {', '.join(_KINDS)}")
    knobs: list[Knob] = []
    findings: list[Finding] = []
    known: set[int] = set()
    mapped = False
    for pod in pods:
        for container in entries(pod.get("containers"), source.name, "containers"):
            for reading in _container_readings(container, source.name, asked):
                knobs += reading.knobs
                findings += [*reading.findings, *_room(pod, container, reading, source.name)]
                mapped = mapped or reading.shm
                known |= {reading.ranks} - {None}  # type: ignore[arg-type]
    if len(pods) > 1 or any(_replicas(document) > 1 for document in source.documents):
        text = "the bytes are those of one pod of each kind: pods that come to lie on one host add up"
        findings.append(finding("warning", "one-pod", text))
    if not knobs:
        raise KvplanError(f"{source.name}: no container starts vLLM or LMCache with a tier")
    ranks = known.pop() if len(known) == 1 else None
    # Each pod has a /dev/shm of its own, which was checked above: the host's is another.
    return Reading(knobs=tuple(knobs), ranks=ranks, shm=False, findings=tuple(findings))


def _pods(document: Any, source: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(document, Mapping):
        return
    if document.get("kind") == "List":
        for item in items(document.get("items"), source, "items"):
            yield from _pods(item, source)
        return
    spec = section(document.get("spec"), source, "spec")
    if document.get("kind") == "Pod":
        yield spec
    elif document.get("kind") in _KINDS:
        template = section(spec.get("template"), source, "template")
        yield section(template.get("spec"), source, "template.spec")


def _replicas(document: Any) -> int:
    spec = document.get("spec") if isinstance(document, Mapping) else None
    count = spec.get("replicas", 1) if isinstance(spec, Mapping) else 1
    return count if isinstance(count, int) else 1


def _container_readings(container: Mapping[str, Any], source: str, asked: Asked) -> Iterator[Reading]:
    listed = entries(container.get("env"), source, "env")
    env = {str(one.get("name", "")): str(one.get("value", "")) for one in listed}
    words = [str(word) for key in ("command", "args") for word in items(container.get(key), source, key)]
    scripts = [word for word in words if " " in word and ("vllm serve" in word or "lmcache server" in word)]
    found = [
        Command(words=one.words, env={**env, **one.env}) for word in scripts for one in Source(source, word).commands
    ]
    inner = Source(source, "", tuple(found) or (Command(words=tuple(words), env=env),))
    if lmcache_server.servers(inner):
        yield lmcache_server.read(inner, asked)
    if vllm_read.engines(inner):
        yield vllm_read.read(inner, asked)


def _room(pod: Mapping[str, Any], container: Mapping[str, Any], reading: Reading, source: str) -> Iterator[Finding]:
    tier = sum(one.bytes or 0 for one in reading.knobs if one.tier == "host")
    if not tier:
        return
    resources = section(container.get("resources"), source, "resources")
    limit = section(resources.get("limits"), source, "limits").get("memory")
    name = container.get("name")
    if limit is not None and quantity(limit, source, "limits.memory") < tier + SHM_SPARE:
        text = f"container {name}: the memory limit {limit} does not hold the tier of {show_bytes(tier)}: it is killed"
        yield finding("error", "memory-limit", text)
    if not reading.shm:
        return
    mounted = entries(container.get("volumeMounts"), source, "volumeMounts")
    mounts = [one.get("name") for one in mounted if one.get("mountPath") == "/dev/shm"]
    volumes = [one for one in entries(pod.get("volumes"), source, "volumes") if one.get("name") in mounts]
    memory = [section(one["emptyDir"], source, "emptyDir") for one in volumes if "emptyDir" in one]
    if not memory or memory[0].get("medium") != "Memory":
        text = f"container {name}: no memory-backed emptyDir at /dev/shm: its 64 MiB do not hold {show_bytes(tier)}"
        yield finding("error", "shm-size", text)
        return
    bound = memory[0].get("sizeLimit")
    if bound is not None and quantity(bound, source, "sizeLimit") < tier + SHM_SPARE:
        text = f"container {name}: /dev/shm has a sizeLimit of {bound} and the tier takes {show_bytes(tier)}"
        yield finding("error", "shm-size", text)
