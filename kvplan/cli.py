"""The command line: parse, import one stage, call it, show its document.

Only this module is lazy: a stage is imported inside its command, so that `kvplan --help` costs a fraction of a second
and no command pays for a library that it does not use.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from kvplan.errors import KvplanError, UsageError
from kvplan.units import parse_duration, parse_rate, parse_size, parse_tokens

if TYPE_CHECKING:
    from kvplan.documents import Document, Estimate, EstimateOptions, GpuSpec, Model, Plan, Policy, Requests, Reserve
    from kvplan.page import Page
    from kvplan.progress import Progress

app = typer.Typer(
    help="How much GPU, host and disk memory to give to the KV cache, and why.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)

V = TypeVar("V")

Json = Annotated[bool, typer.Option("--json", help="Print the document as JSON on standard output, nothing else.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE, whole or not at all.")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No notes or progress on standard error.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="A folder, config.json, Hub id, or a name from `kvplan models`."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")]
Engine = Annotated[str, typer.Option(help="Engine that will hold the cache; none is the logical need.")]
KvDtype = Annotated[str, typer.Option(help="KV cache dtype: auto, bf16, fp16, fp8, …")]
Tp = Annotated[int, typer.Option(min=1, help="Tensor parallel size.")]
Pp = Annotated[int, typer.Option(min=1, help="Pipeline parallel size.")]
Dp = Annotated[int, typer.Option(min=1, help="Data parallel size.")]
Dcp = Annotated[int, typer.Option(min=1, help="Decode context parallel size.")]
Gpu = Annotated[str | None, typer.Option(metavar="NAME", help="A GPU of the catalogue, such as h100-80gb.")]
MaxModelLen = Annotated[str | None, typer.Option(metavar="TOKENS", help="Longest sequence the engine will accept.")]
BlockTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of one block.")]
Format = Annotated[str | None, typer.Option(help="Log format; detected when left out.")]
Tokenizer = Annotated[Path | None, typer.Option(metavar="DIR", help="Local tokenizer folder, for logs of text.")]
TenantBy = Annotated[str | None, typer.Option(metavar="FIELD", help="Log field that names the tenant.")]
Ttl = Annotated[str | None, typer.Option(metavar="TIME", help="Longest time a cached block may be kept, such as 10m.")]
HostMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most host memory the cache may take, such as 512GiB.")
]
DiskSize = Annotated[
    str | None, typer.Option("--disk", metavar="SIZE", help="Most disk the cache may take, such as 4TB.")
]
ForbidDisk = Annotated[bool, typer.Option("--forbid-disk", help="Never keep cache on a disk.")]
SloTtft = Annotated[str | None, typer.Option(metavar="TIME", help="Target time to first token, such as 2s.")]
Replicas = Annotated[int, typer.Option(min=1, help="Replicas that share the log's requests.")]
HostLink = Annotated[str | None, typer.Option(metavar="RATE", help="Host to GPU rate to plan with, such as 25GB/s.")]
PerHost = Annotated[int | None, typer.Option("--replicas-per-host", min=1, help="Replicas that share one host.")]
Growth = Annotated[float, typer.Option(min=0.001, help="Demand to plan for, as a multiple of the log's.")]
Utilization = Annotated[
    float | None, typer.Option("--gpu-memory-utilization", min=0.0, max=1.0, help="The engine's memory fraction.")
]
Flagged = Annotated[bool, typer.Option("--allow-flagged-links", help="Plan with measurements that are flagged.")]
Share = Annotated[Literal["all", "tenant", "none"], typer.Option(help="Whose cached blocks a request may reuse.")]
Routing = Annotated[
    Literal["affinity", "session", "round-robin"], typer.Option(help="How requests are spread over replicas.")
]
Headroom = Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of host memory that is never given away.")]
Reserves = Annotated[
    list[str] | None,
    typer.Option("--reserve", metavar="NAME=SIZE", help="Host memory of something else: other-models=40GiB, …"),
]
RestartEvery = Annotated[str | None, typer.Option(metavar="TIME", help="How often the engine restarts, such as 24h.")]
Expansion = Annotated[float, typer.Option(min=1.0, help="Bytes a tier takes over those of the estimate.")]
Admission = Annotated[
    Literal["all", "second-use"], typer.Option("--disk-admission", help="What is written to disk: all, or reused only.")
]
DiskOwn = Annotated[str | None, typer.Option(metavar="SIZE", help="Bytes of the folder that the cache already holds.")]
Offload = Annotated[
    Literal["native", "lmcache", "lmcache-server"], typer.Option(help="The layer in the engine that keeps the tiers.")
]
PricesFile = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="Dated, confirmed prices (TOML); none, no dollars.")
]
View = Annotated[
    Literal["owned", "bought", "rented"], typer.Option("--price-view", help="What memory costs when a size is chosen.")
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option("--what-if", metavar="KEY=VALUE,…", help="Plan again with changes: kv-dtype=fp8,gpu=h200-141gb."),
]
Earlier = Annotated[
    Path | None, typer.Option("--against", metavar="PLAN", help="An earlier plan: what changed, and why.")
]


def _version(wanted: bool) -> None:
    if wanted:
        from kvplan import __version__

        print(f"kvplan {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        with contextlib.redirect_stdout(sys.stderr):  # help that nobody asked for is no answer
            print(context.get_help())
        raise typer.Exit(2)


def _opt(flag: str, text: str | None, parse: Callable[[str], V]) -> V | None:
    """Parse one option's text; an error names the flag."""
    if text is None:
        return None
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(parse_tokens(part) for part in text.split(",") if part.strip())


def _gpu_spec(name: str | None) -> GpuSpec | None:
    if name is None:
        return None
    from kvplan.catalog import gpu

    return gpu(name)


def _required(value: V | None, flag: str) -> V:
    if value is None:
        raise UsageError(f"{flag} is missing")
    return value


def _estimate(model: str, revision: str | None, options: EstimateOptions, **more: Any) -> Document[Estimate]:
    from kvplan.estimate import estimate as run
    from kvplan.files import wrap
    from kvplan.model import load_model

    return wrap(run(load_model(model, revision), options, **more))


def _drafted(model: Model, draft: str | None) -> Model:
    """The model with what --draft adds: nothing, its own layers of multi-token prediction, or a draft model's."""
    from kvplan.model import load_model
    from kvplan.models.drafts import with_draft

    if draft is None or draft in ("none", "ngram"):
        return model
    method, _, layers = draft.partition(":")
    if method == "mtp":
        if layers and not layers.isdecimal():
            raise UsageError(f"--draft {draft}: write mtp, or mtp:2 for two layers")
        return with_draft(model, "mtp", layers=int(layers) if layers else None)
    return with_draft(model, "draft-model", load_model(draft))


def _estimates(
    models: list[str],
    revision: str | None,
    options: EstimateOptions,
    *,
    draft: str | None,
    workload: Path | None,
    media: tuple[int, str | None, str | None],
    from_log: list[str],
) -> Document[Any]:
    """The estimate of one model, several side by side, or the fit of start-up lines where no model is named."""
    from kvplan.documents import Estimates
    from kvplan.estimate import estimate as run
    from kvplan.files import load, wrap
    from kvplan.media import image_size, tokens
    from kvplan.model import load_model
    from kvplan.startuplog import fit, keeps_fixed_part

    if not models:
        if not from_log:
            raise UsageError("--model is missing")
        return wrap(fit(from_log))
    images, size, audio = media
    seconds = _opt("--audio", audio, parse_duration) or 0.0
    log_of = _pick([load(workload)], "workload", True).data if workload is not None else None
    found = []
    for name in models:
        facts = _drafted(load_model(name, revision), draft)
        found.append(
            run(
                facts,
                options,
                workload=log_of,
                media=tokens(name, images, _opt("--image-size", size, image_size), seconds),
                log=fit(from_log, hybrid=keeps_fixed_part(facts)) if from_log else None,
            )
        )
    return wrap(found[0] if len(found) == 1 else Estimates(estimates=tuple(found)))


@app.command()
def estimate(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL…", help="Models, side by side.")] = None,
    model: ModelName = None,
    revision: Revision = None,
    engine: Engine = "none",
    kv_dtype: KvDtype = "auto",
    tp: Tp = 1,
    pp: Pp = 1,
    dp: Dp = 1,
    dcp: Dcp = 1,
    expert_parallel: Annotated[
        bool, typer.Option("--expert-parallel", help="Deal experts out over all data-parallel ranks.")
    ] = False,
    block_tokens: BlockTokens = None,
    max_model_len: MaxModelLen = None,
    at: Annotated[str, typer.Option(metavar="TOKENS,…", help="Lengths to price, such as 8k,32768.")] = "",
    sequences: Annotated[int, typer.Option(min=1, help="Sequences at each of those lengths.")] = 1,
    gpu: Gpu = None,
    gpu_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of one GPU, such as 80GiB.")] = None,
    kv_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What is left for the cache on each rank.")
    ] = None,
    utilization: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="The engine's own memory fraction, in its meaning.")
    ] = None,
    overhead: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Activations, graphs and context per GPU.")
    ] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of one scheduler step.")] = None,
    hybrid_kv_cache_manager: Annotated[
        bool, typer.Option("--hybrid-kv-cache-manager/--no-hybrid-kv-cache-manager", help="Per-layer-kind block pools.")
    ] = True,
    async_scheduling: Annotated[bool, typer.Option("--async-scheduling/--no-async-scheduling")] = True,
    prefix_caching: Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching")] = True,
    encoder_tokens: Annotated[
        int | None, typer.Option(min=1, help="Encoder input length, where the model fixes none.")
    ] = None,
    skip_layers: Annotated[
        int | None, typer.Option(min=0, help="Layers, half at each end, that keep the model's dtype.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="DRAFT", help="Speculative decoding: ngram, mtp, mtp:2, or a draft model.")
    ] = None,
    workload_file: Annotated[
        Path | None, typer.Option("--workload", metavar="FILE", help="A workload document: what its lengths need.")
    ] = None,
    images: Annotated[int, typer.Option(min=0, help="Images of each request, beside the lengths of --at.")] = 0,
    image_size: Annotated[str | None, typer.Option(metavar="WxH", help="Pixels of each image.")] = None,
    audio: Annotated[str | None, typer.Option(metavar="TIME", help="Audio of each request, such as 30s.")] = None,
    from_log: Annotated[
        list[str] | None,
        typer.Option(metavar="LOG", help="A start-up log, or tokens=N,len=N,pool=SIZE; repeat for several starts."),
    ] = None,
    ctx_size: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="llama.cpp: tokens of the context, all slots together.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="llama.cpp: slots.")] = 1,
    cache_type_k: Annotated[
        str | None, typer.Option(metavar="TYPE", help="llama.cpp: type of K, such as q8_0.")
    ] = None,
    cache_type_v: Annotated[str | None, typer.Option(metavar="TYPE", help="llama.cpp: type of V.")] = None,
    kv_unified: Annotated[
        bool, typer.Option("--kv-unified/--no-kv-unified", help="llama.cpp: all slots share one stream of cells.")
    ] = False,
    swa_full: Annotated[bool, typer.Option("--swa-full", help="llama.cpp: windows as long as the context.")] = False,
    ubatch: Annotated[int, typer.Option(min=1, help="llama.cpp: tokens of one micro-batch.")] = 512,
    flash_attn: Annotated[
        bool, typer.Option("--flash-attn/--no-flash-attn", help="llama.cpp: fused attention.")
    ] = True,
    explain: Annotated[bool, typer.Option("--explain", help="Everything: arithmetic and config keys too.")] = False,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """What one token and one sequence cost in bytes, from the model's own config.

    Example: kvplan estimate --model llama-3.1-8b --engine vllm --gpu h100-80gb --at 8k,32k
    """
    from kvplan.console import answer
    from kvplan.documents import EstimateOptions, LlamaCppOptions, Parallel

    options = EstimateOptions(
        engine=engine,
        kv_dtype=kv_dtype,
        parallel=Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, expert_parallel=expert_parallel),
        block_tokens=block_tokens,
        max_model_len=_opt("--max-model-len", max_model_len, parse_tokens),
        at=_opt("--at", at, _lengths) or (),
        sequences=sequences,
        gpu=_gpu_spec(gpu),
        gpu_memory_bytes=_opt("--gpu-memory", gpu_memory, parse_size),
        kv_memory_bytes=_opt("--kv-memory", kv_memory, parse_size),
        utilization=utilization,
        overhead_bytes=_opt("--overhead", overhead, parse_size),
        max_num_batched_tokens=max_num_batched_tokens,
        hybrid_manager=hybrid_kv_cache_manager,
        async_scheduling=async_scheduling,
        prefix_caching=prefix_caching,
        encoder_tokens=encoder_tokens,
        kv_skip_layers=skip_layers,
        llama_cpp=LlamaCppOptions(
            ctx_size=_opt("--ctx-size", ctx_size, parse_tokens),
            slots=parallel,
            type_k=cache_type_k,
            type_v=cache_type_v,
            unified=kv_unified,
            swa_full=swa_full,
            ubatch=ubatch,
            flash_attention=flash_attn,
        ),
    )
    named = [*(models or ()), *([model] if model else ())]
    points = [one for one in named if from_log and "=" in one]  # several points may follow one --from-log
    document = _estimates(
        [one for one in named if one not in points],
        revision,
        options,
        draft=draft,
        workload=workload_file,
        media=(images, image_size, audio),
        from_log=[*(from_log or ()), *points],
    )
    answer(document, as_json=as_json, output=output, quiet=quiet, full=explain)


def _requests(
    logs: list[Path],
    *,
    listen: Progress,
    format: str | None = None,
    block_tokens: int | None = None,
    tokenizer: Path | None = None,
    tenant_by: str | None = None,
    columns: Sequence[str] = (),
    bytes_per_token: float | None = None,
    skip_bad: int = 0,
) -> Requests:
    from kvplan.logs import read

    return read(
        logs,
        format=format,
        block_tokens=block_tokens,
        tokenizer=tokenizer,
        tenant_by=tenant_by,
        columns=_columns(columns),
        bytes_per_token=bytes_per_token,
        processes=os.cpu_count() or 1,
        skip_bad=skip_bad,
        progress=listen,
    )


def _columns(pairs: Sequence[str]) -> dict[str, str]:
    """What a table's columns hold, from texts such as `time_ms=when`."""
    found = {}
    for pair in (part for text in pairs for part in text.split(",")):
        role, _, name = pair.partition("=")
        if not role.strip() or not name.strip():
            raise UsageError(f"--columns {pair}: write what a column holds and its name, such as time_ms=when")
        found[role.strip()] = name.strip()
    return found


def _share(logs: list[Path], output: Path | None, compare: bool, quiet: bool, reading: dict[str, Any]) -> None:
    """Write logs as one trace that may be shared."""
    from kvplan.console import note, progress
    from kvplan.logs import anonymize

    if output is None or compare:
        raise UsageError("--anonymize writes one trace: name it with -o, and leave --compare out")
    with progress(quiet) as listen:
        requests = _requests(logs, listen=listen, **reading)
        anonymize(requests, output, listen)
    note(f"{output}: {len(requests.input_tokens):,} requests as lengths, times and numbered blocks", quiet)


@app.command()
def workload(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Request logs; - is standard input.")],
    format: Format = None,
    block_tokens: BlockTokens = None,
    tokenizer: Tokenizer = None,
    capacity_blocks: Annotated[list[int] | None, typer.Option(min=1, help="An exact capacity, in blocks.")] = None,
    capacity_tokens: Annotated[list[str] | None, typer.Option(metavar="TOKENS", help="An exact capacity.")] = None,
    tenant_by: TenantBy = None,
    ttl: Ttl = None,
    skip_bad: Annotated[int, typer.Option(min=0, help="Bad lines to leave out, counted, before giving up.")] = 0,
    measure_from: Annotated[float, typer.Option(metavar="SHARE", help="Where in the log warm figures begin.")] = 0.5,
    policies: Annotated[str, typer.Option(metavar="NAME,…", help="fifo, lfu, arc, s3-fifo, optimal.")] = "",
    replicas: Annotated[int | None, typer.Option(min=1, help="What if so many servers shared the requests.")] = None,
    tiers: Annotated[str, typer.Option(metavar="TOKENS,…", help="What if tiers of these capacities, top first.")] = "",
    isolate: Annotated[bool, typer.Option("--isolate", help="Keep tenants' blocks apart.")] = False,
    join_blocks: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="What if blocks held so many tokens, a multiple.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Two logs: the second against the first.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Local processes that find the reuse.")] = 1,
    columns: Annotated[
        list[str] | None, typer.Option(metavar="ROLE=NAME,…", help="What a table's columns hold, such as time_ms=when.")
    ] = None,
    approximate_tokens: Annotated[
        float | None, typer.Option(metavar="BYTES", help="Without a tokenizer: bytes of text that count as a token.")
    ] = None,
    anonymize: Annotated[
        bool, typer.Option("--anonymize", help="Write -o as a trace to share, numbers only, instead of a document.")
    ] = False,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """What a request log really reuses, at every cache size.

    Example: kvplan workload trace.jsonl.gz --capacity-blocks 10000
    """
    from kvplan.console import answer, progress
    from kvplan.files import wrap
    from kvplan.workload import profiled

    reading: dict[str, Any] = {
        "format": format,
        "block_tokens": block_tokens,
        "tokenizer": tokenizer,
        "tenant_by": tenant_by,
        "columns": columns or (),
        "bytes_per_token": approximate_tokens,
        "skip_bad": skip_bad,
    }
    if anonymize:
        return _share(logs, output, compare, quiet, reading)
    with progress(quiet) as listen:
        data = profiled(
            logs,
            lambda some: _requests(list(some), listen=listen, **reading),
            compare=compare,
            isolate=isolate,
            join_blocks=join_blocks,
            workers=workers,
            tier_tokens=_opt("--tiers", tiers, _lengths) or (),
            capacity_blocks=tuple(capacity_blocks or ()),
            capacity_tokens=tuple(_opt("--capacity-tokens", text, parse_tokens) or 0 for text in capacity_tokens or ()),
            ttl_s=_opt("--ttl", ttl, parse_duration),
            measure_from=measure_from,
            other_policies=tuple(name.strip() for name in policies.split(",") if name.strip()),
            replicas=replicas,
            progress=listen,
        )
    return answer(wrap(data), as_json=as_json, output=output, quiet=quiet)


@app.command()
def probe(
    disk: Annotated[list[Path] | None, typer.Option(metavar="DIR", help="A folder on the drive to measure.")] = None,
    model: ModelName = None,
    revision: Revision = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="A running OpenAI-compatible server whose prefill to measure.")
    ] = None,
    at: Annotated[str, typer.Option(metavar="TOKENS,…", help="Prompt lengths to measure prefill at.")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="host, disk, gpu, contention, pipeline or prefill; repeatable.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time to spend.")] = "1m",
    write_budget: Annotated[str, typer.Option(metavar="SIZE", help="Most bytes to write.")] = "8GiB",
    granule: Annotated[
        list[str] | None, typer.Option(metavar="SIZE", help="A size to add to the sweep, such as 2MiB; repeatable.")
    ] = None,
    estimate_file: Annotated[
        Path | None, typer.Option("--estimate", metavar="FILE", help="An estimate: measure with its KV blocks.")
    ] = None,
    sweep_only: Annotated[
        bool, typer.Option("--sweep-only", help="Drives by size and depth only: no engine's shapes, no comparisons.")
    ] = False,
    allow_memory: Annotated[
        bool, typer.Option("--allow-memory", help="Measure a folder in memory (tmpfs) too, flagged.")
    ] = False,
    merge_files: Annotated[
        list[Path] | None,
        typer.Option("--merge", metavar="FILE", help="Measure nothing: make one of these probes of one host."),
    ] = None,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Measure this host: its memory and limits, its drives with direct I/O, its GPUs with page-locked copies.

    With a model, also what recomputing its prefixes costs: from a few of its layers without weights, or on a server.

    Example: kvplan probe --disk /mnt/nvme --model llama-3.1-8b -o host.json
    """
    from kvplan.console import answer, note, progress
    from kvplan.documents import ProbeOptions
    from kvplan.files import load, wrap
    from kvplan.probe import announce, kv_block, measure, merge

    if merge_files:
        data = merge([_pick([load(path)], "probe", True) for path in merge_files])
        answer(wrap(data), as_json=as_json, output=output, quiet=quiet)
        return
    estimate = _pick([load(estimate_file)], "estimate", True) if estimate_file else None
    config = None
    if model is not None:
        from kvplan.model import load_config

        config = load_config(model, revision)
    options = ProbeOptions(
        model=config,
        server=server,
        prefill_tokens=_opt("--at", at, _lengths) or (),
        disks=tuple(str(path) for path in disk or ()),
        only=tuple(only or ()),
        budget_s=_opt("--budget", budget, parse_duration) or 60.0,
        write_budget_bytes=_opt("--write-budget", write_budget, parse_size) or 0,
        granule_bytes=tuple(_opt("--granule", text, parse_size) or 0 for text in granule or ()),
        allow_memory=allow_memory,
        kv=kv_block(estimate.data) if estimate else None,
        sweep_only=sweep_only,
    )
    for line in announce(options):
        note(line, quiet)
    with progress(quiet) as listen:
        data = measure(options, listen)
    answer(wrap(data), as_json=as_json, output=output, quiet=quiet)


def _pick(documents: list[Document[Any]], kind: str, needed: bool) -> Any:
    """The one document of a kind among those given."""
    found = [document for document in documents if document.kind == f"kvplan.{kind}"]
    if len(found) > 1:
        raise UsageError(f"{len(found)} {kind} documents given, one is wanted")
    if not found and needed:
        raise UsageError(f"no {kind} document given: make one with `kvplan {kind} … -o {kind}.json`")
    return found[0] if found else None


def _plan(
    documents: list[Document[Any]],
    gpu: str | None,
    policy: Policy,
    prices: Path | None = None,
    what_if: list[str] | None = None,
    earlier: Path | None = None,
) -> Document[Plan]:
    from kvplan import plan
    from kvplan.files import load, wrap
    from kvplan.prices import read

    inputs = (_pick(documents, "estimate", True), _pick(documents, "workload", True), _pick(documents, "probe", False))
    made = plan.make(*inputs, _gpu_spec(gpu), policy, read(prices) if prices else None)
    if what_if:
        made = plan.what_if(made, what_if)
    if earlier:
        made = plan.against(made, _pick([load(earlier)], "plan", True))
    return wrap(made)


def _profiled(
    inputs: list[Document[Any]], requests: Requests, gpus: Sequence[str | None], policy: Policy, listen: Progress
) -> list[Document[Any]]:
    """The inputs with the log's profile, its curve exact at the capacities that their plans will ask about."""
    from kvplan.files import wrap
    from kvplan.plan import capacities
    from kvplan.workload import profile

    first = wrap(profile(requests, progress=listen))
    if not any(document.kind == "kvplan.estimate" for document in inputs):
        return [*inputs, first]
    wanted: set[int] = set()
    for documents, gpu in _cases([one for one in inputs if one.kind != "kvplan.plan"], gpus):
        estimate, probe = _pick(documents, "estimate", True), _pick(documents, "probe", False)
        wanted.update(capacities(estimate, first, probe, _gpu_spec(gpu), policy))
    return [*inputs, wrap(profile(requests, capacity_tokens=tuple(sorted(wanted)), progress=listen))]


def _reserve(text: str) -> Reserve:
    from kvplan.documents import Reserve

    name, equals, size = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is no part of host memory: write for example other-models=40GiB")
    return Reserve(name=name.strip(), bytes=parse_size(size))


# Policy fields that the command line gives as text: their flag, and what reads it.
_POLICY: dict[str, tuple[str, Callable[[str], Any]]] = {
    "host_memory_bytes": ("--host-memory", parse_size),
    "disk_bytes": ("--disk", parse_size),
    "disk_own_bytes": ("--disk-own", parse_size),
    "ttl_s": ("--ttl", parse_duration),
    "slo_ttft_s": ("--slo-ttft", parse_duration),
    "restart_every_s": ("--restart-every", parse_duration),
    "host_link_bytes_per_s": ("--host-link", parse_rate),
}


def _policy(reserves: list[str] | None = None, **given: Any) -> Policy:
    """A policy from option values by field; what was not given keeps its default."""
    from kvplan.documents import Policy

    values = {name: value for name, value in given.items() if value is not None}
    for name, (flag, parse) in _POLICY.items():
        if name in values:
            values[name] = _opt(flag, values[name], parse)
    parts = tuple(part for text in reserves or () if (part := _opt("--reserve", text, _reserve)))
    return Policy(reserves=parts, **values)


def _exit_if_exceeded(document: Document[Plan]) -> None:
    """Exit 3 when the plan exceeds a limit, so that a script can use kvplan as a gate."""
    broken = [limit for limit in document.data.limits if not limit.ok]
    if broken:
        names = "; ".join(limit.name for limit in broken)
        print(f"kvplan: limit exceeded: {names}", file=sys.stderr)
        raise typer.Exit(3)


@app.command()
def plan(
    documents: Annotated[
        list[Path], typer.Argument(metavar="DOCUMENT…", help="estimate, workload and probe documents.")
    ],
    gpu: Gpu = None,
    engine: Annotated[str, typer.Option(help="Engine to plan for.")] = "vllm",
    host_memory: HostMemory = None,
    disk: DiskSize = None,
    forbid_disk: ForbidDisk = False,
    ttl: Ttl = None,
    slo_ttft: SloTtft = None,
    replicas: Replicas = 1,
    replicas_per_host: PerHost = None,
    routing: Routing = "affinity",
    share: Share = "all",
    growth: Growth = 1.0,
    gpu_memory_utilization: Utilization = None,
    host_link: HostLink = None,
    allow_flagged_links: Flagged = False,
    headroom: Headroom = 0.1,
    reserve: Reserves = None,
    restart_every: RestartEvery = None,
    offload: Offload = "native",
    expansion: Expansion = 1.0,
    disk_admission: Admission = "all",
    disk_own: DiskOwn = None,
    prices: PricesFile = None,
    price_view: View = "owned",
    what_if: WhatIf = None,
    against: Earlier = None,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """GPU, host and disk budgets for the KV cache, with reasons, limits and flags to paste.

    Exit status 3 says that a limit does not hold.

    Example: kvplan plan estimate.json workload.json host.json --gpu h100-80gb -o plan.json
    """
    from kvplan.console import answer
    from kvplan.files import load

    policy = _policy(
        engine=engine,
        host_memory_bytes=host_memory,
        disk_bytes=disk,
        disk_own_bytes=disk_own,
        forbid_disk=forbid_disk,
        ttl_s=ttl,
        slo_ttft_s=slo_ttft,
        replicas=replicas,
        replicas_per_host=replicas_per_host,
        routing=routing,
        share=share,
        growth=growth,
        gpu_memory_utilization=gpu_memory_utilization,
        host_link_bytes_per_s=host_link,
        allow_flagged_links=allow_flagged_links,
        headroom_ratio=headroom,
        reserves=reserve,
        restart_every_s=restart_every,
        offload=offload,
        expansion=expansion,
        disk_admission=disk_admission,
        price_view=price_view,
    )
    document = _plan([load(path) for path in documents], gpu, policy, prices, what_if, against)
    answer(document, as_json=as_json, output=output, quiet=quiet)
    _exit_if_exceeded(document)


@app.command()
def simulate(
    documents: Annotated[
        list[Path], typer.Argument(metavar="DOCUMENT…", help="A plan; or estimate, workload and probe, to plan from.")
    ],
    log: Annotated[list[Path], typer.Option("--log", metavar="LOG", help="The request log to play.")],
    gpu: Gpu = None,
    slo_ttft: SloTtft = None,
    rate_scale: Annotated[float, typer.Option(metavar="FACTOR", help="Arrivals so many times as fast.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Play the first N requests.")] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", metavar="NAME:KEY=VALUE,…", help="One more arm, such as big:host=1TiB,policy=arc."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="TIME:WHAT", help="Something that happens, such as 10m:restart=90s."),
    ] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one step.")] = 8192,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests in the engine at once.")] = 256,
    memory_rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="The GPU's memory rate, where the catalogue lacks it.")
    ] = None,
    format: Format = None,
    block_tokens: BlockTokens = None,
    tokenizer: Tokenizer = None,
    tenant_by: TenantBy = None,
    skip_bad: Annotated[int, typer.Option(min=0, help="Bad lines to leave out, counted, before giving up.")] = 0,
    columns: Annotated[
        list[str] | None, typer.Option(metavar="ROLE=NAME,…", help="What a table's columns hold, such as time_ms=when.")
    ] = None,
    approximate_tokens: Annotated[
        float | None, typer.Option(metavar="BYTES", help="Without a tokenizer: bytes of text that count as a token.")
    ] = None,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """One schedule, played with offload off and on: who waits, what is hit, what the links carry.

    With --slo-ttft the rate that each arm sustains is searched too.

    Example: kvplan simulate plan.json --log trace.jsonl.gz --slo-ttft 10s
    """
    from kvplan import simulate as stage
    from kvplan.console import answer, progress
    from kvplan.files import load, wrap

    inputs = [load(path) for path in documents]
    given = _pick(inputs, "plan", False)
    made = given if given is not None else _plan(inputs, gpu, _policy())
    arms, faults = [stage.arm_of(text) for text in arm or ()], [stage.fault_of(text) for text in fault or ()]
    options = stage.Options(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        memory_bytes_per_s=_opt("--memory-rate", memory_rate, parse_rate),
    )
    with progress(quiet) as listen:
        requests = _requests(
            log,
            listen=listen,
            format=format,
            block_tokens=block_tokens,
            tokenizer=tokenizer,
            tenant_by=tenant_by,
            columns=columns or (),
            bytes_per_token=approximate_tokens,
            skip_bad=skip_bad,
        )
        data = stage.run(
            made.data,
            requests,
            arms=arms,
            faults=faults,
            rate_scale=rate_scale,
            limit=limit,
            slo_ttft_s=_opt("--slo-ttft", slo_ttft, parse_duration),
            options=options,
            progress=listen,
        )
    answer(wrap(data), as_json=as_json, output=output, quiet=quiet)


@app.command()
def residency(
    models: Annotated[Path, typer.Argument(metavar="MODELS", help="Machine and models: a TOML or JSON list.")],
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="Requests with time, model and service_s: .jsonl or .csv.")
    ],
    max_models: Annotated[
        int | None, typer.Option("--models-max", min=1, help="Models at once, as llama.cpp's router counts.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Admit on bytes, up to SIZE; the machine's memory by default.")
    ] = None,
    keep_alive: Annotated[str | None, typer.Option(metavar="TIME", help="Unload a model idle for TIME.")] = None,
    sleep_after: Annotated[str | None, typer.Option(metavar="TIME", help="Empty a model idle for TIME.")] = None,
    batch_wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="Gather requests, and swap after TIME at the latest.")
    ] = None,
    kv_on_swap: Annotated[Literal["lost", "saved"], typer.Option(help="What a swap does to the KV cache.")] = "lost",
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="A plan whose host KV tier takes of the same memory.")
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="TIME", help="How soon another model's request counts as next.")
    ] = "1s",
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Also play without busy protection and with wrong counts.")
    ] = True,
    search: Annotated[bool, typer.Option("--search/--no-search", help="Search the best limit for the log.")] = True,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Several models on one machine: who waits, who is evicted and why, and what to set.

    Example: kvplan residency models.toml requests.jsonl --models-max 1
    """
    from kvplan.console import answer, progress
    from kvplan.files import load, wrap
    from kvplan.residency import policies, read_log, read_models, with_plan
    from kvplan.residency import residency as run

    machine, listed = read_models(models)
    if plan is not None:
        machine = with_plan(machine, _pick([load(plan)], "plan", True).data)
    asked, others = policies(
        machine,
        max_models=max_models,
        budget_bytes=_opt("--budget", budget, parse_size),
        keep_alive_s=_opt("--keep-alive", keep_alive, parse_duration),
        sleep_after_s=_opt("--sleep-after", sleep_after, parse_duration),
        batch_wait_s=_opt("--batch-wait", batch_wait, parse_duration),
        kv_on_swap=kv_on_swap,
    )
    near = _required(_opt("--window", window, parse_duration), "--window")
    with progress(quiet) as listen:
        requests = read_log(log, listed)
        shown = others if compare else ()
        made = run(machine, listed, requests, asked, compare=shown, window_s=near, searched=search, progress=listen)
    answer(wrap(made), as_json=as_json, output=output, quiet=quiet)


@app.command()
def report(
    documents: Annotated[list[Path] | None, typer.Argument(metavar="[DOCUMENT…]", help="Documents to render.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="MODEL", help="A model, as for `kvplan estimate`; repeat for several plans."),
    ] = None,
    revision: Revision = None,
    log: Annotated[list[Path] | None, typer.Option(metavar="LOG", help="A request log to profile.")] = None,
    probe_file: Annotated[
        list[Path] | None,
        typer.Option("--probe", metavar="FILE", help="A probe of the target host; repeat for several hosts."),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="NAME", help="A GPU of the catalogue; repeat for several plans."),
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine to plan for.")] = "vllm",
    kv_dtype: KvDtype = "auto",
    tp: Tp = 1,
    pp: Pp = 1,
    max_model_len: MaxModelLen = None,
    format: Format = None,
    tokenizer: Tokenizer = None,
    tenant_by: TenantBy = None,
    host_memory: HostMemory = None,
    disk: DiskSize = None,
    forbid_disk: ForbidDisk = False,
    ttl: Ttl = None,
    slo_ttft: SloTtft = None,
    replicas: Replicas = 1,
    replicas_per_host: PerHost = None,
    routing: Routing = "affinity",
    share: Share = "all",
    growth: Growth = 1.0,
    gpu_memory_utilization: Utilization = None,
    host_link: HostLink = None,
    allow_flagged_links: Flagged = False,
    headroom: Headroom = 0.1,
    prices: PricesFile = None,
    what_if: WhatIf = None,
    against: Earlier = None,
    full: Annotated[bool, typer.Option("--full", help="Print the whole page, not its first screen.")] = False,
    as_json: Json = False,
    output: Annotated[
        list[Path] | None, typer.Option("-o", "--output", metavar="FILE", help="FILE.html, FILE.md or FILE.json.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """A review document: from one document, from several, or straight from a model, a log and a probe.

    Several plans, models, hosts or GPUs make one review, a plan for each of their combinations.

    Example: kvplan report --model llama-3.1-8b --log trace.jsonl --probe host.json --gpu h100-80gb -o review.html
    """
    from kvplan.console import note, progress, stdout
    from kvplan.documents import EstimateOptions, Parallel
    from kvplan.files import dump, load
    from kvplan.report import page_of, print_page

    inputs: list[Document[Any]] = [load(path) for path in (*(documents or ()), *(probe_file or ()))]
    gpus: Sequence[str | None] = gpu or [None]
    options = EstimateOptions(
        engine=engine,
        kv_dtype=kv_dtype,
        parallel=Parallel(tp=tp, pp=pp),
        max_model_len=_opt("--max-model-len", max_model_len, parse_tokens),
        gpu=_gpu_spec(gpus[0]) if len(gpus) == 1 else None,
    )
    inputs += [_estimate(one, revision, options) for one in model or ()]
    policy = _policy(
        engine=engine,
        host_memory_bytes=host_memory,
        disk_bytes=disk,
        forbid_disk=forbid_disk,
        ttl_s=ttl,
        slo_ttft_s=slo_ttft,
        replicas=replicas,
        replicas_per_host=replicas_per_host,
        routing=routing,
        share=share,
        growth=growth,
        gpu_memory_utilization=gpu_memory_utilization,
        host_link_bytes_per_s=host_link,
        allow_flagged_links=allow_flagged_links,
        headroom_ratio=headroom,
    )
    if log:
        with progress(quiet) as listen:
            requests = _requests(log, listen=listen, format=format, tokenizer=tokenizer, tenant_by=tenant_by)
            inputs = _profiled(inputs, requests, gpus, policy, listen)
    if not inputs:
        raise UsageError("nothing to report: name a document, or give --model and --log")
    made = _reviewed(inputs, gpus, policy, prices, what_if, against)
    page = page_of(made)
    for path in output or ():
        _write_report(page, made, path)
        note(f"wrote {path}", quiet)
    if as_json:
        sys.stdout.write(dump(_single(made, "--json")))
    elif not output:
        print_page(page, stdout(), full)


def _reviewed(
    inputs: list[Document[Any]],
    gpus: Sequence[str | None],
    policy: Policy,
    prices: Path | None,
    what_if: list[str] | None,
    earlier: Path | None,
) -> list[Document[Any]]:
    """The plans among the inputs, then those that the rest of them makes; a document that is alone stays itself."""
    plans = [document for document in inputs if document.kind == "kvplan.plan"]
    rest = [document for document in inputs if document.kind != "kvplan.plan"]
    if len(rest) == 1 and not plans and not what_if and not earlier:
        return rest
    made = [_beside(document, what_if, earlier) for document in plans]
    for documents, gpu in _cases(rest, gpus) if rest else ():
        made.append(_plan(documents, gpu, policy, prices, what_if, earlier))
    return made


def _beside(document: Document[Plan], what_if: list[str] | None, earlier: Path | None) -> Document[Plan]:
    """A finished plan with what-ifs or an earlier plan beside it, where they are asked for."""
    from dataclasses import replace

    from kvplan import plan
    from kvplan.files import load

    data = document.data
    if what_if:
        data = plan.what_if(data, what_if)
    if earlier:
        data = plan.against(data, _pick([load(earlier)], "plan", True))
    return replace(document, data=data)


def _cases(documents: list[Document[Any]], gpus: Sequence[str | None]) -> list[tuple[list[Document[Any]], str | None]]:
    """Every combination of the estimates, probes and GPUs given, with the documents that they share."""
    from itertools import product

    estimates = [document for document in documents if document.kind == "kvplan.estimate"]
    probes = [document for document in documents if document.kind == "kvplan.probe"]
    shared = [document for document in documents if document.kind not in ("kvplan.estimate", "kvplan.probe")]
    some = [[one] for one in estimates] or [[]]
    here = [[one] for one in probes] or [[]]
    return [([*estimate, *shared, *probe], gpu) for estimate, probe, gpu in product(some, here, gpus)]


def _single(documents: list[Document[Any]], what: str) -> Document[Any]:
    """The one document of a review. Raises UsageError where there are several, which are no document."""
    if len(documents) > 1:
        raise UsageError(f"{what}: {len(documents)} plans are not one document: save each with `kvplan plan … -o FILE`")
    return documents[0]


def _write_report(page: Page, documents: list[Document[Any]], path: Path) -> None:
    """Write a page as HTML, Markdown with its pictures beside it, or its document as JSON, by the file's ending."""
    from kvplan.files import dump, make_folder, write_atomically
    from kvplan.report import html, markdown

    match path.suffix.lower():
        case ".html" | ".htm":
            write_atomically(path, html(page))
        case ".md":
            folder = path.with_name(f"{path.stem}-files")
            text, figures = markdown(page, folder.name)
            if figures:
                make_folder(folder)
            for name, svg in figures.items():
                write_atomically(folder / name, svg)
            write_atomically(path, text)
        case ".json":
            write_atomically(path, dump(_single(documents, f"-o {path}")))
        case other:
            raise UsageError(f"-o {path}: {other or 'no ending'} is no report format: use .html, .md or .json")


@app.command()
def models(as_json: Json = False) -> None:
    """List the built-in catalogue of models, with the source and date of each entry."""
    from kvplan.console import stdout
    from kvplan.model import catalogue

    entries = catalogue()
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(entries), indent=2).decode() + "\n")
        return
    from rich.table import Table

    table = Table("name", "Hub id", "params", "context", "source", "date", box=None, pad_edge=False)
    for entry in entries:
        size = f"{entry.params / 1e9:.3g} B" if entry.params else "unknown"
        context = f"{entry.max_context_tokens:,}" if entry.max_context_tokens else "unknown"
        table.add_row(entry.name, entry.hub_id, size, context, entry.source, entry.date)
    stdout().print(table)


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(help="estimate, workload, probe, plan, …")],
) -> None:
    """Print the JSON Schema of a document kind.

    Example: kvplan schema plan
    """
    import json

    from kvplan.files import json_schema

    print(json.dumps(json_schema(kind), indent=2))


def main() -> None:
    """Run the command line. Expected failures are one line on standard error; KVPLAN_DEBUG=1 shows where they rose."""
    try:
        app()
    except KvplanError as error:
        if os.environ.get("KVPLAN_DEBUG"):
            raise
        print(f"kvplan: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
