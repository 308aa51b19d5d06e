"""Model + engine + precision + parallelism + GPU -> Estimate: what one token and one sequence cost in bytes."""

from __future__ import annotations

import math
from dataclasses import replace

from kvplan.documents import Concurrency, Estimate, EstimateOptions, Finding, GpuMemory, Model, Weights
from kvplan.engines.layout import Layout, engine, version
from kvplan.engines.profiles import profile
from kvplan.errors import LimitError, UsageError
from kvplan.units import GiB, show_bytes

DEFAULT_OVERHEAD = 4 * GiB  # the allowance of the engines' profiles


def estimate(model: Model, options: EstimateOptions) -> Estimate:
    """The Estimate of a model under `options`.

    Raises KvplanError for an engine, a KV dtype or a parallel layout that is unknown or cannot hold this model, and
    LimitError where weights and overhead leave nothing for the cache.
    """
    _check(options)
    layout = engine(options.engine).lay_out(model, options)
    context = _context(model, options)
    weights = _per_gpu(model.weights, options)
    memory, notes = _memory(model, options, layout, weights, context)
    at = tuple(layout.bytes_at(tokens, options.sequences) for tokens in options.at)
    return Estimate(
        model=model.ref,
        engine=options.engine,
        kv_dtype=layout.kv_dtype,
        parallel=options.parallel,
        block_tokens=layout.block_tokens,
        groups=layout.groups,
        kv=replace(layout.cost, bytes_at=at),
        weights=weights,
        memory=memory,
        compute=model.compute,
        engine_view=layout.view(memory.kv_bytes if memory else None, context),
        engine_version=version(options.engine),
        findings=(*model.findings, *layout.findings, *notes),
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


def _context(model: Model, options: EstimateOptions) -> int | None:
    """The context length that capacity is stated for: as asked, but never longer than the model allows."""
    asked, longest = options.max_model_len, model.ref.max_context_tokens
    return min(asked, longest) if asked and longest else asked or longest


def _per_gpu(weights: Weights | None, options: EstimateOptions) -> Weights | None:
    """An even share of the weights over tensor and pipeline ranks."""
    if weights is None or options.parallel.gpus == 1:
        return weights
    return replace(weights, bytes_per_gpu=-(-weights.bytes // options.parallel.gpus))


def _memory(
    model: Model, options: EstimateOptions, layout: Layout, weights: Weights | None, context: int | None
) -> tuple[GpuMemory | None, tuple[Finding, ...]]:
    """What one GPU has for the cache, and what fits in it; None where no budget was given or it cannot be split."""
    total = options.gpu_memory_bytes or (options.gpu.memory_bytes if options.gpu else None)
    if options.kv_memory_bytes is None and total is None:
        return None, ()
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
    rules = None if options.engine == "none" else profile(options.engine)
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
