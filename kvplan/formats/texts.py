"""Logs of text: requests collected, rendered and counted a batch at a time, kept as block keys and counts."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter, deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from kvplan.documents import Finding
from kvplan.errors import KvplanError, UsageError
from kvplan.formats import parts
from kvplan.formats.approximation import Approximation
from kvplan.formats.entries import Entry, collected
from kvplan.formats.hashed import lengths_only
from kvplan.formats.lines import Lines
from kvplan.formats.parts import Told
from kvplan.formats.render import Renderer
from kvplan.formats.rows import Options, Rows
from kvplan.formats.work import Done, Work
from kvplan.units import show_percent

_BATCH = 128
_WORTH_PROCESSES = 4096  # requests: below, starting processes costs more than it saves
_DEFAULT_BLOCK_TOKENS = 16  # vLLM's
_COUNTS_MAY_DIFFER = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request as logged. `logged_tokens` and `cached_tokens` are the prompt's in the log's words, None: unknown."""

    line: int
    work: Work
    model: str
    time_s: float
    output_tokens: int | None
    duration_s: float
    tenant: str | None
    session: str | None
    logged_tokens: int | None
    cached_tokens: int | None = None


_Batch: TypeAlias = tuple[list[Prompt], "Future[list[Done | str]] | list[Done | str]"]


class LogOfEither:
    """A log that may hold text, or only the lengths of prompts; its first request decides which."""

    def __init__(self, lines: Lines, options: Options) -> None:
        self._lines = lines
        self._options = options
        self._log: TextLog | None = None
        self._lengths: list[Entry] = []

    def __enter__(self) -> LogOfEither:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log is not None:
            self._log.__exit__()

    def add(self, prompt: Prompt) -> None:
        """Take one request; an empty body is none. Raises ValueError for one unlike the first."""
        if self._log is None and not self._lengths and prompt.work.body:
            self._log = TextLog(self._lines, self._options)
            self._log.need_template()
        if bool(prompt.work.body) != (self._log is not None):
            raise ValueError(f"holds {'a' if prompt.work.body else 'no'} prompt, unlike the lines before")
        if self._log is not None:
            self._log.add(prompt)
            return
        if prompt.logged_tokens is None:
            raise ValueError("holds neither a prompt nor the number of its tokens")
        entry = Entry(
            line=prompt.line,
            time_s=prompt.time_s,
            input_tokens=prompt.logged_tokens,
            output_tokens=prompt.output_tokens or 0,
            keys=np.zeros(0, np.int64),
            duration_s=prompt.duration_s,
            tenant=prompt.tenant,
            session=prompt.session,
        )
        self._lengths.append(entry)

    def rows(self, findings: tuple[Finding, ...], without: str) -> Rows:
        """Everything added. `without` tells a user whose log has lengths only how to get prompts into it."""
        if self._log is not None:
            return self._log.rows(findings)
        text = f"The log holds no prompts, only their lengths: it tells the load and nothing about reuse. {without}"
        lengths = Finding(severity="warning", code="lengths-only", text=text)
        return lengths_only(collected(self._lengths), (*findings, lengths))


class TextLog:
    """The requests of one file of text. No more than some batches of text are held; then only hashes and counts are."""

    def __init__(self, lines: Lines, options: Options) -> None:
        self._lines = lines
        self._options = options
        self._block_tokens = options.block_tokens or options.text_block_tokens or _DEFAULT_BLOCK_TOKENS
        self._counter = _counter(lines, options)
        self._pool: ProcessPoolExecutor | None = None
        self._taken = 0
        self._waiting: list[Prompt] = []
        self._batches: deque[_Batch] = deque()
        self._kept: list[tuple[Prompt, Done]] = []
        self._told: list[Told] = []
        self._models: Counter[str] = Counter()

    def __enter__(self) -> TextLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def need_template(self) -> None:
        """Raise KvplanError where the tokenizer cannot render messages."""
        self._counter.need_template()

    def add(self, prompt: Prompt) -> None:
        """Take one request."""
        self._waiting.append(prompt)
        self._taken += 1
        if len(self._waiting) == _BATCH:
            self._send()

    def _send(self) -> None:
        works = [prompt.work for prompt in self._waiting]
        if (
            self._taken > _WORTH_PROCESSES
            and self._pool is None
            and self._options.processes > 1
            and self._options.tokenizer
        ):
            # a forked process would lack the threads that the tokenizer has started
            self._pool = ProcessPoolExecutor(
                self._options.processes,
                multiprocessing.get_context("spawn"),
                _start,
                (self._options.tokenizer, self._options.image_tokens),
            )
        if self._pool is not None:
            self._batches.append((self._waiting, self._pool.submit(_done, works, self._block_tokens)))
        else:
            self._batches.append((self._waiting, self._counter.done(works, self._block_tokens)))
        self._waiting = []
        while len(self._batches) > (2 * self._options.processes if self._pool is not None else 0):
            self._collect()

    def _collect(self) -> None:
        prompts, results = self._batches.popleft()
        if isinstance(results, Future):
            try:
                results = results.result()
            except BrokenProcessPool:
                raise KvplanError(
                    f"{self._lines.name}: a tokenizing process died, perhaps for want of memory"
                ) from None
        self._options.progress(f"tokenizing {self._lines.name}: {self._taken:,} requests")
        for prompt, result in zip(prompts, results, strict=True):
            if isinstance(result, str):
                self._lines.bad(prompt.line, result)
            else:
                told = parts.told(prompt.work.reply, result.parts, result.head_tokens, result.answer_keys)
                self._told.append(told)
                bare = Work(body={}, seed=())  # the text is let go
                self._kept.append((_without_text(prompt, bare), result))
                self._models[prompt.model] += 1

    def rows(self, findings: tuple[Finding, ...]) -> Rows:
        """Everything added, with `findings` before its own."""
        if self._waiting:
            self._send()
        while self._batches:
            self._collect()
        prompts = [prompt for prompt, _ in self._kept]
        done = [result for _, result in self._kept]
        tenants = [prompt.tenant for prompt in prompts]
        sessions = [prompt.session for prompt in prompts]
        outputs = [_output(prompt, result) for prompt, result in self._kept]
        return Rows(
            block_tokens=self._block_tokens,
            line=np.array([prompt.line for prompt in prompts], np.int64),
            time_s=np.array([prompt.time_s for prompt in prompts], np.float64),
            input_tokens=np.array([result.tokens for result in done], np.int64),
            output_tokens=np.array(outputs, np.int64),
            duration_s=np.array([prompt.duration_s for prompt in prompts], np.float64),
            count=np.array([len(result.keys) // 8 for result in done], np.int64),
            keys=np.frombuffer(b"".join(result.keys for result in done), np.int64),
            tenant=tenants if any(tenants) else (),
            session=sessions if any(sessions) else (),
            findings=(*findings, *self._findings()),
            texts=self._told,
        )

    def _findings(self) -> list[Finding]:
        how = "as given" if self._options.block_tokens else "vLLM's default; --block-tokens sets another"
        if self._options.text_block_tokens and not self._options.block_tokens:
            how = "as the estimate says"
        text = f"Prompts rendered and tokenized whole, in blocks of {self._block_tokens} tokens ({how})."
        findings = [Finding(severity="info", code="block-size", text=text)]
        if self._options.tokenizer is None and (per_token := self._options.bytes_per_token):
            text = (
                f"No tokenizer: {per_token:g} bytes of text count as a token (assumed), in blocks of "
                f"{self._block_tokens} tokens ({how}). What requests share is exact to such a block, lengths are not."
            )
            findings = [Finding(severity="warning", code="approximate-tokens", text=text)]
        if len(self._models) > 1:
            text = f"The log names {len(self._models)} models: they share nothing, and one tokenizer counts them all."
            findings.append(Finding(severity="warning", code="several-models", text=text))
        if images := sum(result.images for _, result in self._kept):
            each = self._options.image_tokens
            own = "their own tokens are not counted"
            if each is not None:
                own = f"an image counts {each:,} tokens, as the estimate says"
            text = (
                f"{images:,} images (or sounds, files) stand as hashes of their content: equal ones are shared, {own}."
            )
            findings.append(Finding(severity="warning" if each is None else "info", code="images", text=text))
        return [*findings, *self._against_the_log()]

    def _against_the_log(self) -> list[Finding]:
        """How the log's own counts compare: prompt lengths, and cached tokens where they are told."""
        findings = []
        drift = [
            prompt.logged_tokens / done.tokens for prompt, done in self._kept if prompt.logged_tokens and done.tokens
        ]
        off = float(np.median(drift)) - 1 if drift else 0.0
        if abs(off) > _COUNTS_MAY_DIFFER:
            text = (
                f"The log's prompt token counts are {show_percent(abs(off))} {'above' if off > 0 else 'below'} those "
            )
            if self._options.bytes_per_token is not None:
                fits = self._options.bytes_per_token / (1 + off)
                text += f"estimated here (median): --approximate-tokens {fits:.2f} would fit them."
            else:
                text += "of this tokenizer (median): is it the served model's?"
            findings.append(Finding(severity="warning", code="token-counts", text=text))
        told = [(prompt.cached_tokens, prompt.logged_tokens or done.tokens) for prompt, done in self._kept]
        cached = [(tokens, whole) for tokens, whole in told if tokens is not None]
        if cached:
            share = sum(tokens for tokens, _ in cached) / max(sum(whole for _, whole in cached), 1)
            text = (
                f"{len(cached):,} of {len(told):,} requests tell their cached tokens: {show_percent(min(share, 1.0))} "
                "of their input. Others do not say, which is not zero."
            )
            findings.append(Finding(severity="info", code="cached-tokens", text=text))
        return findings


def _counter(lines: Lines, options: Options) -> Renderer | Approximation:
    if options.tokenizer is not None and options.bytes_per_token is not None:
        raise UsageError("--approximate-tokens stands in for a tokenizer: leave it or --tokenizer out")
    if options.tokenizer is not None:
        options.progress("loading the tokenizer")
        return Renderer(options.tokenizer, options.image_tokens)
    if options.bytes_per_token is not None:
        return Approximation(options.bytes_per_token, options.image_tokens)
    raise KvplanError(
        f"{lines.name}: holds text, whose tokens depend on the model: give --tokenizer DIR, the folder with the served "
        "model's tokenizer, or --approximate-tokens 4 (bytes a token) for an estimate"
    )


def _output(prompt: Prompt, done: Done) -> int:
    return prompt.output_tokens if prompt.output_tokens is not None else done.reply_tokens or 0


def _without_text(prompt: Prompt, bare: Work) -> Prompt:
    return replace(prompt, work=bare)


_renderer: Renderer | None = None  # in a tokenizing process: its tokenizer


def _start(folder: Path, image_tokens: int | None) -> None:
    global _renderer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process a core already
    _renderer = Renderer(folder, image_tokens)


def _done(works: list[Work], block_tokens: int) -> list[Done | str]:
    assert _renderer is not None
    return _renderer.done(works, block_tokens)
