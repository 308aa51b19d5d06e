"""Forward passes of a model on one device, timed: what a prefill costs there.

The protocol keeps the rest free of torch, so that fits and sums are also tested on a device whose cost is known.
"""

from __future__ import annotations

import copy
import inspect
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from kvplan.errors import KvplanError
from kvplan.probing import cutmodel

Clock = Callable[[], float]
_BLOCK_CYCLES = 50_000_000  # of the device's clock, some 30 ms: longer than submitting the passes of a few layers
_FLOAT_BYTES = 4


class OutOfMemory(Exception):
    """A pass needs more memory than there is: the text says what was wanted where that is known."""


class Passes(Protocol):
    """A device that builds models from configs and times their prefill."""

    device: str
    how: str
    gpus: int | None
    element_bytes: int

    def typical(self, seconds: Sequence[float]) -> float:
        """The time to believe among repeated ones."""

    def free_bytes(self) -> int:
        """Memory that models and passes may take now."""

    def build(self, config: Any, like: Any = None) -> Any:
        """A model with random weights; embeddings are those of `like` where one is given."""

    def seconds(self, model: Any, tokens: int, prefix: Any) -> float:
        """Seconds to prefill `tokens` tokens behind a `prefix` made by `prefilled` (None for an empty one).

        Raises OutOfMemory, and KvplanError where the device fails.
        """

    def prefilled(self, model: Any, tokens: int) -> Any:
        """The cache of `tokens` tokens, to prefill behind. Raises what `seconds` raises."""


class TorchPasses:
    """Passes through transformers on torch: on a CUDA device, or on this processor."""

    def __init__(self, name: str, device: str, device_name: str, usable_bytes: int, clock: Clock | None = None) -> None:
        import torch

        self._torch, self._name = torch, name
        self._device = torch.device(device)
        self._cuda = self._device.type == "cuda"
        self._dtype = torch.bfloat16 if self._cuda else torch.float32
        self._clock = clock or time.perf_counter
        self._usable, self._taken = usable_bytes, 0
        self._random = torch.Generator(device=self._device).manual_seed(0)
        self.device = device_name
        self.gpus = 1 if self._cuda else None
        self.element_bytes = self._torch.finfo(self._dtype).bits // 8
        kind = "bfloat16, device time" if self._cuda else f"float32, {torch.get_num_threads()} threads"
        self.how = f"transformers on torch {torch.__version__.partition('+')[0]}, {kind}"

    def typical(self, seconds: Sequence[float]) -> float:
        """The middle on a GPU; the least on a processor, where whatever else runs only ever adds to it."""
        return statistics.median(seconds) if self._cuda else min(seconds)

    def free_bytes(self) -> int:
        if self._cuda:
            return int(self._torch.cuda.mem_get_info(self._device)[0])
        return max(0, self._usable - self._taken)

    def build(self, config: Any, like: Any = None) -> Any:
        try:
            model = cutmodel.build(config, self._device, self._dtype, self._name)
        except self._torch.OutOfMemoryError:
            raise OutOfMemory("no memory for the cut model") from None
        self._taken += sum(parameter.nbytes for parameter in model.parameters())
        if like is not None:
            model.set_input_embeddings(like.get_input_embeddings())
            head = like.get_output_embeddings()
            if head is not None:
                model.set_output_embeddings(head)
        return model

    def seconds(self, model: Any, tokens: int, prefix: Any) -> float:
        with self._failing(), self._torch.inference_mode():
            ids, cache = self._ids(model, tokens), copy.deepcopy(prefix)
            return self._on_device(model, ids, cache) if self._cuda else self._on_host(model, ids, cache)

    def prefilled(self, model: Any, tokens: int) -> Any:
        with self._failing(), self._torch.inference_mode():
            found = self._run(model, self._ids(model, tokens), None)
            return getattr(found, _cache_name(inspect.signature(model.forward).parameters))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Too little memory is an answer; any other failure of a device ends the measurement in one line."""
        try:
            yield
        except self._torch.OutOfMemoryError as error:
            raise OutOfMemory(str(error).splitlines()[0]) from None
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise KvplanError(f"{self._name}: a pass failed on {self.device}: {first}: {cutmodel.INSTEAD}") from None

    def _ids(self, model: Any, tokens: int) -> Any:
        size = (1, tokens)
        return self._torch.randint(model.config.vocab_size, size, device=self._device, generator=self._random)

    def _run(self, model: Any, ids: Any, cache: Any) -> Any:
        known = inspect.signature(model.forward).parameters
        more: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        if cache is not None:
            more[_cache_name(known)] = cache
        return model(input_ids=ids, use_cache=True, **more)

    def _on_host(self, model: Any, ids: Any, cache: Any) -> float:
        began = self._clock()
        self._run(model, ids, cache)
        return self._clock() - began

    def _on_device(self, model: Any, ids: Any, cache: Any) -> float:
        """Device time alone: everything is submitted behind a wait, so that submitting costs nothing between marks."""
        cuda = self._torch.cuda
        with cuda.device(self._device):  # events and the wait go to the current device's stream
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda.synchronize(self._device)
            cuda._sleep(_BLOCK_CYCLES)
            start.record()
            self._run(model, ids, cache)
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3


def _cache_name(known: Collection[str]) -> str:
    """What this release of transformers calls the cache: older ones had a name for each family."""
    return next(name for name in ("cache", "past_key_values", "cache_params") if name in known)


def pass_bytes(config: Any, tokens: int, prefix: int, element: int) -> int:
    """Memory that a pass may take beyond weights and cache: activations, the mask, and the square where one is made.

    An upper bound by a few times, to stop before the host swaps: a mask holds an entry for each pair of tokens.
    """
    hidden = int(config.hidden_size)
    inner = max([4 * hidden, *(int(v) for v in _widths(config) if isinstance(v, int))])
    each = int(getattr(config, "num_experts_per_tok", None) or 1)
    rows = tokens * (12 * hidden + 3 * inner * each) * max(element, 2)
    square = tokens * (tokens + prefix)
    heads = int(getattr(config, "num_attention_heads", 1) or 1)
    eager = getattr(config, "_attn_implementation", None) == "eager"
    return rows + square * (1 + element) + (square * heads * 2 * _FLOAT_BYTES if eager else 0)


def _widths(config: Any) -> tuple[Any, ...]:
    keys = ("intermediate_size", "moe_intermediate_size", "ffn_hidden_size")
    return tuple(getattr(config, key, None) for key in keys)
