"""`kvplan estimate`: bytes of a model, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.options import (
    BlockTokens,
    Dcp,
    Dp,
    Engine,
    Gpu,
    Json,
    KvDtype,
    MaxModelLen,
    Output,
    Pp,
    Quiet,
    Revision,
    Tp,
    gpu_spec,
    lengths,
    opt,
    pick,
)
from kvplan.errors import UsageError
from kvplan.units import parse_duration, parse_size, parse_tokens

if TYPE_CHECKING:
    from kvplan.documents import Document, Estimate, EstimateOptions, Model


def estimated(model: str, revision: str | None, options: EstimateOptions, **more: Any) -> Document[Estimate]:
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


def _resolved(draft: str | None, added: int) -> str | None:
    """What --draft came to: how many layers predict further tokens is then known."""
    return f"mtp:{added}" if draft == "mtp" else draft


def _several(
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
    from msgspec.structs import replace

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
    seconds = opt("--audio", audio, parse_duration) or 0.0
    log_of = pick([load(workload)], "workload", True).data if workload is not None else None
    found = []
    for name in models:
        plain = load_model(name, revision)
        facts = _drafted(plain, draft)
        found.append(
            run(
                facts,
                replace(options, draft=_resolved(draft, len(facts.order) - len(plain.order))),
                workload=log_of,
                media=tokens(name, images, opt("--image-size", size, image_size), seconds),
                log=fit(from_log, hybrid=keeps_fixed_part(facts)) if from_log else None,
            )
        )
    return wrap(found[0] if len(found) == 1 else Estimates(estimates=tuple(found)))


def estimate(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL…", help="Models, side by side.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL", help="A folder, config.json, Hub id, or a name from `kvplan models`; repeat for several."
        ),
    ] = None,
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
    from kvplan.console import answer, expect
    from kvplan.documents import EstimateOptions, LlamaCppOptions, Parallel

    options = EstimateOptions(
        engine=engine,
        kv_dtype=kv_dtype,
        parallel=Parallel(tp=tp, pp=pp, dp=dp, dcp=dcp, expert_parallel=expert_parallel),
        block_tokens=block_tokens,
        max_model_len=opt("--max-model-len", max_model_len, parse_tokens),
        at=opt("--at", at, lengths) or (),
        sequences=sequences,
        gpu=gpu_spec(gpu),
        gpu_memory_bytes=opt("--gpu-memory", gpu_memory, parse_size),
        kv_memory_bytes=opt("--kv-memory", kv_memory, parse_size),
        utilization=utilization,
        overhead_bytes=opt("--overhead", overhead, parse_size),
        max_num_batched_tokens=max_num_batched_tokens,
        hybrid_manager=hybrid_kv_cache_manager,
        async_scheduling=async_scheduling,
        prefix_caching=prefix_caching,
        encoder_tokens=encoder_tokens,
        kv_skip_layers=skip_layers,
        llama_cpp=LlamaCppOptions(
            ctx_size=opt("--ctx-size", ctx_size, parse_tokens),
            slots=parallel,
            type_k=cache_type_k,
            type_v=cache_type_v,
            unified=kv_unified,
            swa_full=swa_full,
            ubatch=ubatch,
            flash_attention=flash_attn,
        ),
    )
    expect(output)
    named = [*(models or ()), *(model or ())]
    points = [one for one in named if from_log and "=" in one]  # several points may follow one --from-log
    document = _several(
        [one for one in named if one not in points],
        revision,
        options,
        draft=draft,
        workload=workload_file,
        media=(images, image_size, audio),
        from_log=[*(from_log or ()), *points],
    )
    answer(document, as_json=as_json, output=output, quiet=quiet, full=explain)
