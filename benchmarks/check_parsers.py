"""Every emitted configuration through the real parser of its system, where that installs: accepted, and the same bytes.

Run by `make check-parsers`, which builds an environment for each system. The shell texts are run by a real shell: the
programs that they start are stand-ins which write down their words and variables. What no parser can be had for is
said to rest on documentation. Prints the table of docs/engines.md; exit status 1 where a parser disagrees.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from live import llamacpp
from live.models import Shape, write_gguf

from kvplan.documents import Knob, LlamaCppOptions, Switches
from kvplan.engines.configs import SYSTEMS, emit
from kvplan.engines.configs.common import Emission, Given
from kvplan.engines.configs.source import Source
from kvplan.units import GiB, MiB

SIDES = Path(__file__).parent / "parsers"
GIVEN = {
    "host, 4 ranks": Given(
        host_bytes=240 * GiB,
        disk_bytes=0,
        ranks=4,
        latent=False,
        block_tokens=16,
        utilization=0.92,
        tp=4,
        max_model_len=16_384,
        context_tokens=512,
        slots=2,
        cache_types=("q8_0", "q8_0"),
    ),
    "odd bytes, latent, 8 ranks": Given(
        host_bytes=401 * GiB + 123_456_789,
        disk_bytes=0,
        ranks=8,
        latent=True,
        block_tokens=64,
        utilization=0.9,
        tp=4,
        pp=2,
        dcp=4,
        kv_bytes=40 * GiB + 1,
        kv_tokens=327_680,
        model="models/with space",
    ),
    "host and disk": Given(
        host_bytes=100 * GiB + 1,
        disk_bytes=4000 * GiB + 7,
        ranks=2,
        latent=False,
        block_tokens=16,
        utilization=0.92,
        tp=2,
        disk_path="/mnt/it's here",
    ),
    "every switch": Given(
        host_bytes=240 * GiB,
        disk_bytes=0,
        ranks=4,
        latent=False,
        block_tokens=48,
        utilization=0.92,
        tp=4,
        context_tokens=512,
        slots=2,
        cache_types=("f16", "f16"),
        switches=Switches(
            block_tokens=48,
            max_num_batched_tokens=16_384,
            hybrid_manager=False,
            async_scheduling=False,
            prefix_caching=False,
            draft="mtp:1",
            llama_cpp=LlamaCppOptions(unified=True, swa_full=True, ubatch=256, flash_attention=False),
        ),
    ),
    "disk alone": Given(
        host_bytes=0,
        disk_bytes=3000 * GiB + 5,
        ranks=4,
        latent=False,
        block_tokens=16,
        block_bytes=61 * 16 * 1152,
        utilization=0.92,
        tp=4,
        disk_path="/mnt/nvme",
    ),
}
VLLM = ("vllm", "lmcache", "lmcache-server", "dynamo-kvbm", "mooncake-store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan emitted for one system, its texts saved in `folder`."""

    id: str
    system: str
    given: Given
    made: Emission
    folder: Path

    def knobs(self, name: str) -> list[Knob]:
        """Knobs of a name."""
        return [one for one in self.made.knobs if one.name == name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one parser said of one system: which cases it took, and where it came to other bytes."""

    system: str
    parser: str
    taken: int
    wrong: tuple[str, ...]
    right: str = "accepted, the same bytes"


def cases(root: Path) -> Iterator[Case]:
    """Every plan for every system that can do it."""
    for place, (what, given) in enumerate(GIVEN.items()):
        for name, row in SYSTEMS.items():
            host = given.host_bytes, given.disk_bytes
            asked = ("nothing", "host", "disk", "host+disk")[(host[0] > 0) + 2 * (host[1] > 0)]
            if row.written is None or asked not in row.tiers or name.startswith("vllm-"):
                continue
            folder = root / f"{name}-{place}"
            folder.mkdir()
            made = emit(row, given)
            for one in made.parts:
                (folder / one.name).write_text(one.text)
            yield Case(id=f"{name}: {what}", system=name, given=given, made=made, folder=folder)


def started(case: Case, script: str, program: str, stands: Path) -> tuple[list[str], dict[str, str]]:
    """Words and variables that a shell gives the program of a script: run for real, with a stand-in on the path."""
    stand, record = stands / program, stands / "record.json"
    code = f"#!{sys.executable}\nimport json, os, sys\n"
    stand.write_text(code + f"json.dump([sys.argv[1:], dict(os.environ)], open({str(record)!r}, 'w'))\n")
    stand.chmod(0o755)
    environment = {"PATH": f"{stands}:/usr/bin:/bin"}
    subprocess.run(["/bin/sh", script], cwd=case.folder, check=True, env=environment)
    words, variables = json.loads(record.read_text())
    stand.unlink()
    return words, variables


def asked(python: Path, side: str, wanted: list[dict[str, Any]], root: Path) -> tuple[str, dict[str, Any]]:
    """A side's answers, by case. Raises SystemExit with its own words where it does not run."""
    question = root / f"{side}.json"
    question.write_text(json.dumps(wanted))
    command = [str(python), str(SIDES / f"{side}_side.py"), str(question)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python}: {side}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["version"], found["cases"]


def compared(case: Case, answer: dict[str, Any], sized: bool = True) -> Iterator[str]:
    """Where a parser's bytes are not those that were meant, or the text was refused; `sized` texts hold the sizes."""
    if "error" in answer:
        yield f"{case.id}: refused: {answer['error']}"
        return
    if sized and case.made.knobs and not answer["sizes"]:
        yield f"{case.id}: no size was read"
    if answer.get("ranks", case.given.ranks) != case.given.ranks:
        yield f"{case.id}: {answer['ranks']} ranks for {case.given.ranks}"
    if answer.get("policy", "recompute") != "recompute" or answer.get("known") is False:
        yield f"{case.id}: connector {answer.get('connector')}, failure policy {answer.get('policy')}"
    for name, size in answer["sizes"].items():
        meant = [one for one in case.made.knobs if one.name == name]
        if name == "chunks":
            whole = next(one.bytes or 0 for one in case.made.knobs if one.tier == "host")
            if not 0 <= whole - size < case.given.ranks * MiB:
                yield f"{case.id}: {size} B of whole chunks in {whole}"
        elif name == "cpu_bytes_to_use":
            if size != next(one.bytes for one in case.made.knobs if one.tier == "host"):
                yield f"{case.id}: {name} is {size}"
        elif name == "global_segment_size" and not meant and not size:
            continue  # a client process owns the pool
        elif not meant or size * _times(case, meant[0]) != meant[0].bytes:
            yield f"{case.id}: {name} is {size} B, meant {meant[0].bytes if meant else 'nothing'}"


def _times(case: Case, one: Knob) -> int:
    """A side counts what its file says: one rank, where the ranks are another file's to say."""
    return one.times if case.system in ("lmcache", "sglang") else 1


def check_vllm(found: Sequence[Case], python: Path, root: Path, stands: Path) -> Iterator[Outcome]:
    """vLLM's command of every system that runs in it."""
    wanted = []
    mine = [case for case in found if case.system in VLLM]
    for case in mine:
        words, variables = started(case, "vllm.sh", "vllm", stands)
        wanted.append({"id": case.id, "argv": words, "env": variables, "folder": str(case.folder)})
    version, answers = asked(python, "vllm", wanted, root)
    for system in VLLM:
        some = [case for case in mine if case.system == system]
        sized = system in ("vllm", "mooncake-store")
        wrong = tuple(text for case in some for text in compared(case, answers[case.id], sized))
        what = {"vllm": "arguments, connector and its chunks", "mooncake-store": "arguments and the JSON's loader"}
        yield Outcome(
            system=system, parser=f"vLLM {version}: {what.get(system, 'arguments')}", taken=len(some), wrong=wrong
        )


def check_lmcache(found: Sequence[Case], python: Path, root: Path, stands: Path) -> Iterator[Outcome]:
    """LMCache's loader on its files, its server's parser on its commands."""
    wanted: list[dict[str, Any]] = []
    for case in found:
        if case.system == "lmcache":
            wanted.append({"id": case.id, "argv": [], "file": "lmcache.yaml", "folder": str(case.folder)})
        elif case.system == "lmcache-server":
            words, _ = started(case, "lmcache-server.sh", "lmcache", stands)
            wanted.append({"id": case.id, "argv": words})
    version, answers = asked(python, "lmcache", wanted, root)
    for system, what in (("lmcache", "file loader"), ("lmcache-server", "server parser")):
        some = [case for case in found if case.system == system]
        wrong = [text for case in some for text in compared(case, answers[case.id])]
        wrong += [f"{case.id}: no eviction" for case in some if answers[case.id].get("evicting") is False]
        yield Outcome(system=system, parser=f"LMCache {version}: {what}", taken=len(some), wrong=tuple(wrong))


def check_sglang(found: Sequence[Case], python: Path, root: Path, stands: Path) -> Iterator[Outcome]:
    """SGLang's ServerArgs."""
    mine = [case for case in found if case.system == "sglang"]
    wanted = [{"id": case.id, "argv": started(case, "sglang.sh", "python", stands)[0]} for case in mine]
    version, answers = asked(python, "sglang", wanted, root)
    wrong = tuple(text for case in mine for text in compared(case, answers[case.id]))
    yield Outcome(system="sglang", parser=f"SGLang {version}: ServerArgs", taken=len(mine), wrong=wrong)


def check_llamacpp(found: Sequence[Case], environment: Path, root: Path, stands: Path) -> Iterator[Outcome]:
    """llama.cpp's server started with a tiny model: what it says of its prompt cache, and its router of its presets."""
    model = write_gguf(root / "tiny.gguf", Shape(layers=1, width=64, heads=2, kv_heads=1), 1)
    mine = [case for case in found if case.system == "llama.cpp"]
    wrong = []
    for case in mine:
        words, _ = started(case, "llama-server.sh", "llama-server", stands)
        options = [str(model) if before == "--model" else word for before, word in pairwise(["", *words])]
        with llamacpp.served(environment, root / "llama.log", [*options, "--ctx-size", "256", "-lv", "4"]) as server:
            said = [line for line in server.lines() if "size limit" in line]
        if not any(f"{case.knobs('--cache-ram')[0].written} MiB" in line for line in said):
            wrong.append(f"{case.id}: the server says {said}")
    yield Outcome(system="llama.cpp", parser="llama-server, started", taken=len(mine), wrong=tuple(wrong))
    routed = [case for case in found if case.system == "llama.cpp-router"]
    wrong = []
    for case in routed:
        options = ["--models-preset", str(case.folder / "models.ini"), "--models-max", "1"]
        with llamacpp.served(environment, root / "router.log", options) as server:
            listed = server.get("/models")
        words = [model["status"].get("args", []) for model in json.loads(listed)["data"]]
        size = case.knobs("cache-ram")[0].written
        if not any(pair == ("--cache-ram", size) for args in words for pair in pairwise(args)):
            wrong.append(f"{case.id}: the router lists {words}")
    yield Outcome(
        system="llama.cpp-router", parser="llama-server's router, its list", taken=len(routed), wrong=tuple(wrong)
    )


# Programs that do not load without a GPU: where each is in its environment, and which file sets what it reads.
_LIBRARIES = {
    "dynamo-kvbm": ("KVBM 1.6.1", "kvbm/_core*.so", "kvbm.env"),
    "mooncake-store": ("Mooncake 0.3.13", "mooncake/mooncake_client", "mooncake-client.sh"),
}


def check_names(found: Sequence[Case], environment: Path) -> Iterator[Outcome]:
    """Whether a program that cannot be run here holds the names of the variables and flags that it is given."""
    for system, (program, place, file) in _LIBRARIES.items():
        (library,) = environment.glob(f"lib/python3*/site-packages/{place}")
        known = library.read_bytes()
        mine = [case for case in found if case.system == system and (case.folder / file).exists()]
        wrong = tuple(
            f"{case.id}: {name} is nowhere in {library.name}"
            for case in mine
            for name in _names(Source("", (case.folder / file).read_text()))
            if name.encode() not in known
        )
        yield Outcome(
            system=system, parser=f"{program}, not loaded", taken=len(mine), wrong=wrong, right="every name is known"
        )


def _names(source: Source) -> Iterator[str]:
    yield from (name for name in source.env if name.startswith(("DYN_", "MOONCAKE_")))
    yield from (name for command in source.commands for name in command.flags)


# Keys and types of one model in the chart's values, as its schema states them.
_VALUES: dict[str, Any] = {
    "type": "object",
    "required": ["servingEngineSpec"],
    "properties": {
        "servingEngineSpec": {
            "type": "object",
            "properties": {
                "modelSpec": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"},
                            "modelURL": {"type": "string"},
                            "replicaCount": {"type": "integer"},
                            "requestGPU": {"type": ["integer", "number", "string"]},
                            "requestMemory": {"type": "string"},
                            "limitMemory": {"type": "string"},
                            "env": {"type": "array"},
                            "extraVolumes": {"type": "array"},
                            "extraVolumeMounts": {"type": "array"},
                            "lmcacheConfig": {
                                "type": "object",
                                "properties": {
                                    "enabled": {"type": "boolean"},
                                    "cpuOffloadingBufferSize": {"type": ["integer", "number", "string"]},
                                    "diskOffloadingBufferSize": {"type": ["integer", "number", "string"]},
                                },
                                "additionalProperties": False,
                            },
                            "vllmConfig": {
                                "type": "object",
                                "properties": {
                                    "tensorParallelSize": {"type": "integer"},
                                    "gpuMemoryUtilization": {"type": ["integer", "number", "string"]},
                                    "extraArgs": {"type": "array", "items": {"type": "string"}},
                                },
                                "additionalProperties": False,
                            },
                        },
                    },
                }
            },
        }
    },
}


def check_values(found: Sequence[Case]) -> Iterator[Outcome]:
    """Helm values against what the chart's schema says of the keys in them."""
    import yaml
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    mine = [case for case in found if case.system == "production-stack"]
    schema = Draft202012Validator(_VALUES)
    wrong = tuple(
        f"{case.id}: {error.message}"
        for case in mine
        for error in schema.iter_errors(yaml.safe_load((case.folder / "values.yaml").read_text()))
    )
    parser = "the chart's schema, as restated here"
    yield Outcome(system="production-stack", parser=parser, taken=len(mine), wrong=wrong, right="accepted")


def environments() -> argparse.Namespace:
    """Where each system's Python is."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("vllm", "lmcache", "sglang", "llamacpp", "names"):
        parser.add_argument(f"--{name}", type=Path, help=f"environment of {name}; without it, it is left out")
    return parser.parse_args()


def outcomes(given: argparse.Namespace, root: Path) -> Iterator[Outcome]:
    """Every parser that there is an environment for."""
    stands = root / "stands"
    stands.mkdir()
    found = list(cases(root))
    if given.sglang:
        yield from check_sglang(found, given.sglang / "bin/python", root, stands)
    if given.lmcache:
        yield from check_lmcache(found, given.lmcache / "bin/python", root, stands)
    if given.vllm:
        yield from check_vllm(found, given.vllm / "bin/python", root, stands)
    if given.llamacpp:
        yield from check_llamacpp(found, given.llamacpp, root, stands)
    if given.names:
        yield from check_names(found, given.names)
    yield from check_values(found)


def main() -> None:
    """Print the table; exit 1 where a parser disagrees."""
    given = environments()
    with tempfile.TemporaryDirectory() as folder:
        found = list(outcomes(given, Path(folder)))
    print("| system | parser | texts | outcome |\n|---|---|---|---|")
    for one in found:
        outcome = "; ".join(one.wrong) or one.right
        print(f"| `{one.system}` | {one.parser} | {one.taken} | {outcome} |")
    for name in (
        "`tensorrt-llm`",
        "`dynamo-kvbm`, what its sizes mean",
        "`mooncake-store`, what its client's sizes mean",
    ):
        print(f"| {name} | none that installs without a GPU | | documentation only |")
    print(f"checked on Python {sys.version.split()[0]}, {os.cpu_count()} cores", file=sys.stderr)
    sys.exit(any(one.wrong for one in found))


if __name__ == "__main__":
    main()
