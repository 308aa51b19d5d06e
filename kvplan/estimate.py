"""Model + engine + precision + parallelism + GPU -> Estimate: what one token and one sequence cost in bytes."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from kvplan.documents import (
    Concurrency,
    Estimate,
    EstimateOptions,
    Finding,
    GpuMemory,
    Growth,
    LengthMix,
    LlamaCppOptions,
    LogFit,
    MediaTokens,
    MixClass,
    MixLoad,
    Model,
    Percentiles,
    Switches,
    Weights,
    Workload,
)
from kvplan.engines.layout import TOO_SHORT, Layout, canonical, engine, version
from kvplan.engines.profiles import profile
from kvplan.errors import LimitError, UsageError
from kvplan.units import GiB, show_bytes

DEFAULT_OVERHEAD = 4 * GiB  # the allowance of the engines' profiles
NO_SERVER = ("none", "transformers")  # nothing of the GPU is set aside, and there is no memory fraction
LLAMA_FLAGS = (  # as the command line has them
    ("ctx_size", "--ctx-size"),
    ("slots", "--parallel"),
    ("type_k", "--cache-type-k"),
    ("type_v", "--cache-type-v"),
    ("unified", "--kv-unified"),
    ("swa_full", "--swa-full"),
    ("ubatch", "--ubatch"),
    ("flash_attention", "--no-flash-attn"),
)
QUANTISED = re.compile(r"NVFP4|MXFP4|FP8|FP4|INT8|INT4|AWQ|GPTQ|W4A16|W8A8|W8A16|[48]bit", re.IGNORECASE)
QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))


def estimate(
    model: Model,
    options: EstimateOptions,
    *,
    workload: Workload | None = None,
    media: Sequence[MediaTokens] = (),
    log: LogFit | None = None,
) -> Estimate:
    """The Estimate of a model under `options`.

    `workload` adds what its mix of lengths needs, `media` the tokens that images and audio add to a request, `log` what
    an engine's start-up lines say. Raises KvplanError for an engine, a KV dtype or a parallel layout that is unknown or
    cannot hold this model, and LimitError where weights and overhead leave nothing for the cache.
    """
    options = replace(options, engine=canonical(options.engine))
    _check(options)
    options, added = _with_media(options, media)
    layout = engine(options.engine).lay_out(model, options)
    context, cut = _context(model, options)
    weights, shared = _per_gpu(model, options)
    memory, notes = _memory(model, options, layout, weights, context)
    at = tuple(layout.bytes_at(tokens, options.sequences) for tokens in options.at)
    against = None if log is None else _against(log, layout)
    notes = (*cut, *_name_says_more(model), *notes, *_too_long(options, layout, memory, context))
    return Estimate(
        model=model.ref,
        engine=options.engine,
        kv_dtype=layout.kv_dtype,
        parallel=options.parallel,
        block_tokens=layout.block_tokens,
        max_model_len=context if options.max_model_len else None,
        groups=layout.groups,
        kv=replace(layout.cost, bytes_at=at, growth=_growth(layout)),
        weights=weights,
        memory=memory,
        compute=model.compute,
        mix=None if workload is None else _mix(layout, workload, memory, options),
        media=tuple(media),
        log=against,
        switches=Switches(**{name: getattr(options, name) for name in Switches.__struct_fields__}),
        engine_view=layout.view(memory.kv_bytes if memory else None, context),
        engine_version=version(options.engine),
        findings=(*model.findings, *layout.findings, *shared, *added, *notes, *(against.findings if against else ())),
    )


def _check(options: EstimateOptions) -> None:
    parallel = options.parallel
    for name, size in (("tp", parallel.tp), ("pp", parallel.pp), ("dp", parallel.dp), ("dcp", parallel.dcp)):
        if size < 1:
            raise UsageError(f"--{name} is {size}: at least 1")
    if options.sequences < 1:
        raise UsageError(f"--sequences is {options.sequences}: at least 1")
    if options.max_model_len is not None and options.max_model_len < 1:
        raise UsageError(f"--max-model-len is {options.max_model_len}: at least 1")
    if options.engine != "llama.cpp" and options.llama_cpp != LlamaCppOptions():
        plain = LlamaCppOptions()
        named = (flag for field, flag in LLAMA_FLAGS if getattr(options.llama_cpp, field) != getattr(plain, field))
        raise UsageError(f"{', '.join(named)}: an option of llama.cpp, and the engine is {options.engine}")


def _with_media(options: EstimateOptions, media: Sequence[MediaTokens]) -> tuple[EstimateOptions, tuple[Finding, ...]]:
    """The lengths asked for with the tokens of images and audio added, and what is said of it."""
    more = sum(one.tokens or 0 for one in media)
    notes = [
        Finding(severity="warning", code="media-unknown", text=f"tokens of {one.kind} are left out: {one.source}")
        for one in media
        if one.tokens is None
    ]
    if more and options.at:
        text = f"each length has {more:,} tokens of images and audio added"
        notes.append(Finding(severity="info", code="media-added", text=text))
    return replace(options, at=tuple(tokens + more for tokens in options.at)), tuple(notes)


def _context(model: Model, options: EstimateOptions) -> tuple[int | None, tuple[Finding, ...]]:
    """The context that capacity is stated for: as asked, but never longer than the model allows, which is said."""
    asked, longest = options.max_model_len, model.ref.max_context_tokens
    if not (asked and longest):
        return asked or longest, ()
    if asked <= longest:
        return asked, ()
    text = (
        f"--max-model-len {asked:,} is longer than the {longest:,} tokens that the model's config allows: {longest:,} "
        "are taken. Where its positions are stretched, give a config that says so"
    )
    return longest, (Finding(severity="warning", code="context-cut", text=text),)


def _too_long(
    options: EstimateOptions, layout: Layout, memory: GpuMemory | None, context: int | None
) -> tuple[Finding, ...]:
    """What does not go into the cache at all: one sequence of the whole context, and lengths asked for beyond it."""
    found = []
    beyond = max((tokens for tokens in options.at if context and tokens > context), default=None)
    if beyond is not None:
        text = f"{beyond:,} tokens are beyond the context of {context:,}: such a request is refused, or cut"
        found.append(Finding(severity="warning", code="beyond-context", text=text))
    if context and memory is not None and layout.groups:
        found += _not_one(options, layout, memory.kv_bytes, context)
    return tuple(found)


def _not_one(options: EstimateOptions, layout: Layout, kv_bytes: int, context: int) -> Iterator[Finding]:
    """Where not even one sequence of the whole context fits: what the engine does then, and what would fit."""
    if options.engine == "llama.cpp":
        view = layout.view(None, context)
        size, cells = view.get("context_bytes"), view.get("n_ctx")
        if not isinstance(size, int) or not isinstance(cells, int) or size <= kv_bytes:
            return
        text = f"llama.cpp allocates its whole context at start, {show_bytes(size)} for {cells:,} tokens, and "
        text += f"{show_bytes(kv_bytes)} are left: it does not start so. Give a smaller --ctx-size"
    elif layout.sequences_held(kv_bytes, context) >= 1:
        return
    else:
        fits = bisect_left(range(1, context), True, key=lambda tokens: layout.sequences_held(kv_bytes, tokens) < 1)
        text = f"one sequence of {context:,} tokens does not fit in {show_bytes(kv_bytes)} of KV cache"
        text += f"{TOO_SHORT.get(options.engine, '')}. --max-model-len"
        text += f" {fits // layout.block_tokens * layout.block_tokens:,} would fit"
    yield Finding(severity="warning", code="context-does-not-fit", text=text)


# ------------------------------------------------------------------------------- growth with length


def _growth(layout: Layout) -> tuple[Growth, ...]:
    """The curve of one sequence, one copy, stretch by stretch: its slope falls where a window is full."""
    groups = [group for group in layout.groups if group.kind != "cross"]
    fixed = sum(group.bytes_per_sequence for group in layout.groups if group.window_tokens is None)
    ends = sorted({group.window_tokens for group in groups if group.window_tokens})
    found, held, start = [], fixed, 0
    for end in [*ends, None]:
        slope = sum(
            group.bytes_per_token for group in groups if group.window_tokens is None or group.window_tokens > start
        )
        found.append(Growth(from_tokens=start, to_tokens=end, bytes_per_token=slope, bytes_at_start=held))
        if end is not None:
            held += slope * (end - start)
            start = end
    return tuple(found)


# ------------------------------------------------------------------------------- weights on one GPU


def _per_gpu(model: Model, options: EstimateOptions) -> tuple[Weights | None, tuple[Finding, ...]]:
    """The weights on the fullest rank: layers by stage, the ends on theirs, all cut over tensor ranks.

    With expert parallelism the experts are dealt over the ranks of all data-parallel engines, the rest is copied.
    """
    weights, parallel = model.weights, options.parallel
    if weights is None or (parallel.gpus == 1 and not parallel.expert_parallel):
        return weights, ()
    known = (weights.experts_bytes, weights.embedding_bytes, weights.head_bytes)
    experts, embedding, head = (part or 0 for part in known)
    blocks = weights.bytes - experts - embedding - head
    if None in known or blocks < 0:
        text = f"where the weights sit is not known: an even share over {parallel.gpus} GPUs is taken"
        return (
            replace(weights, bytes_per_gpu=-(-weights.bytes // parallel.gpus)),
            (Finding(severity="info", code="weights-even-share", text=text),),
        )
    layers, stage = max(1, model.num_layers), -(-model.num_layers // parallel.pp)
    ends = max(embedding, head or embedding) if parallel.pp > 1 else embedding + head
    dealt = parallel.tp * (parallel.dp if parallel.expert_parallel else 1)
    size = -(-(blocks * stage // layers + ends) // parallel.tp) + -(-(experts * stage // layers) // dealt)
    return replace(weights, bytes_per_gpu=size), ()


def _name_says_more(model: Model) -> tuple[Finding, ...]:
    """Where a checkpoint is named by a precision of which its config says nothing: a file beside it may."""
    named, weights = QUANTISED.search(model.ref.id.rpartition("/")[2]), model.weights
    if named is None or weights is None or weights.provenance != "configured" or "quantised" in weights.source:
        return ()
    text = (
        f"the name says {named[0]}, and the config states no quantisation: weights are counted in {model.dtype}, and "
        "the KV dtype is taken as if there was none. Give the folder or Hub id, with its hf_quant_config.json"
    )
    return (Finding(severity="warning", code="quantisation-unstated", text=text),)


# ------------------------------------------------------------------------------- one GPU's memory


def _memory(
    model: Model, options: EstimateOptions, layout: Layout, weights: Weights | None, context: int | None
) -> tuple[GpuMemory | None, tuple[Finding, ...]]:
    """What one GPU has for the cache, and what fits in it; None where no budget was given or it cannot be split."""
    total = options.gpu_memory_bytes or (options.gpu.memory_bytes if options.gpu else None)
    if options.kv_memory_bytes is None and total is None:
        return None, ()
    if total is not None and (options.kv_memory_bytes or 0) > total:
        asked = show_bytes(options.kv_memory_bytes or 0)
        raise UsageError(f"--kv-memory {asked} is more than the {show_bytes(total)} of one GPU: it counts by rank")
    if options.kv_memory_bytes is None and weights is None:
        text = f"the weights of model type {model.ref.model_type!r} are not known, nor what they leave for the cache"
        text += ": give the folder with its safetensors files, or --kv-memory"
        return None, (Finding(severity="warning", code="weights-unknown", text=text),)
    if options.kv_memory_bytes is not None:
        memory = GpuMemory(
            gpu=_gpu_name(options),
            total_bytes=total,
            usable_bytes=None,
            weights_bytes=weights.bytes_per_gpu if weights else None,
            overhead_bytes=None,
            kv_bytes=options.kv_memory_bytes,
            kv_tokens=0,
            overhead_provenance="configured",
            overhead_source="--kv-memory",
        )
    else:
        assert total is not None
        assert weights is not None
        memory = _split(options, total, weights)
    return _filled(memory, options, layout, context)


def _split(options: EstimateOptions, total: int, weights: Weights) -> GpuMemory:
    """One GPU's memory in three parts, by the engine's own rule. Raises LimitError where nothing is left."""
    rules = None if options.engine in NO_SERVER else profile(options.engine)
    overhead, source = options.overhead_bytes, "--overhead"
    if overhead is None:
        overhead = DEFAULT_OVERHEAD if rules is None else rules.overhead_bytes
        source = "activations, CUDA graphs and context: an allowance until the server's own start-up lines say"
    held = weights.bytes_per_gpu
    if rules is not None:
        fraction = rules.utilization if options.utilization is None else options.utilization
        usable = rules.usable_bytes(total, fraction, held, overhead)
    else:
        usable = math.ceil(total * (1.0 if options.utilization is None else options.utilization))
    left = usable - held - overhead
    if left <= 0:
        raise LimitError(
            f"nothing is left for the cache: of {show_bytes(usable)} usable on each GPU weights take"
            f" {show_bytes(held)} and overhead {show_bytes(overhead)}: use more GPUs (--tp, --pp) or smaller weights"
        )
    return GpuMemory(
        gpu=_gpu_name(options),
        total_bytes=total,
        usable_bytes=usable,
        weights_bytes=held,
        overhead_bytes=overhead,
        kv_bytes=left,
        kv_tokens=0,
        overhead_provenance="assumed" if options.overhead_bytes is None else "configured",
        overhead_source=source,
    )


def _gpu_name(options: EstimateOptions) -> str:
    if options.gpu is not None:
        return options.gpu.name
    return "" if options.gpu_memory_bytes is None else "as stated"


def _filled(
    memory: GpuMemory, options: EstimateOptions, layout: Layout, context: int | None
) -> tuple[GpuMemory, tuple[Finding, ...]]:
    """The same memory with the tokens and sequences that it holds, at the context and at every length asked for."""
    if not layout.groups:
        return memory, ()
    lengths = sorted({*options.at, *([context] if context else [])})
    if not lengths:
        text = "the model states no context length: give --max-model-len for the tokens that fit"
        return memory, (Finding(severity="warning", code="context-unknown", text=text),)
    held = tuple(
        Concurrency(context_tokens=tokens, sequences=layout.sequences_held(memory.kv_bytes, tokens))
        for tokens in lengths
        if tokens
    )
    longest = context or lengths[-1]
    return replace(memory, kv_tokens=layout.tokens_held(memory.kv_bytes, longest), max_concurrency=held), ()


# ------------------------------------------------------------------------------- a mix of lengths


def _mix(layout: Layout, workload: Workload, memory: GpuMemory | None, options: EstimateOptions) -> LengthMix:
    """What the requests of a workload need: of each length alone, and together as they met in the log.

    The percentiles of input and of output are added, which overstates where long inputs have short outputs.
    """
    classes, mean, before = [], 0.0, 0.0
    for name, share in QUANTILES:
        tokens = math.ceil(getattr(workload.input_lengths, name) + getattr(workload.output_lengths, name))
        size = layout.bytes_at(tokens, 1).steady_bytes
        held = layout.sequences_held(memory.kv_bytes, tokens) if memory is not None and tokens else None
        classes.append(MixClass(share=share, tokens=tokens, bytes=size, sequences=held))
        mean += (share - before) * size
        before = share
    return LengthMix(
        requests=workload.requests,
        classes=tuple(classes),
        mean_bytes_at_most=math.ceil(mean),
        loads=_loads(layout, workload.active_requests, workload.active_tokens, memory, options),
    )


def _loads(
    layout: Layout,
    requests: Percentiles | None,
    tokens: Percentiles | None,
    memory: GpuMemory | None,
    options: EstimateOptions,
) -> tuple[MixLoad, ...]:
    """What was active at once: as many requests as that, each of the mean length then."""
    if requests is None or tokens is None:
        return ()
    found = []
    room = None if memory is None else memory.kv_bytes * options.parallel.gpus
    for name, share in QUANTILES:
        count, total = getattr(requests, name), getattr(tokens, name)
        each = layout.bytes_at(math.ceil(total / count), 1).steady_bytes if count else 0
        size = math.ceil(each * count)
        fits = None if room is None else size <= room
        found.append(MixLoad(share=share, requests=count, tokens=total, bytes=size, fits=fits))
    return tuple(found)


# ------------------------------------------------------------------------------- start-up lines


def _against(log: LogFit, layout: Layout) -> LogFit:
    """The fit with what this estimate expects of the same pools, and a finding for each that differs by 2 % or more."""
    points = tuple(
        replace(point, expected_tokens=layout.tokens_held(point.pool_bytes, point.context_tokens))
        for point in log.points
    )
    notes = []
    for point in points:
        expected = point.expected_tokens or 0
        if abs(point.tokens - expected) * 50 >= point.tokens:
            ratio = point.tokens / expected if expected else math.inf
            text = f"{point.source}: the log has {point.tokens:,} tokens at {point.context_tokens:,}, this estimate"
            text += (
                f" {expected:,} ({ratio:.2f} times): another version, dtype, parallel size or model than stated here"
            )
            notes.append(Finding(severity="warning", code="log-disagrees", text=text))
    return replace(log, points=points, findings=(*log.findings, *notes))
