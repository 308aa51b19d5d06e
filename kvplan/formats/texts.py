"""Logs of text: requests collected as rendered prompts, tokenised a batch at a time, kept as block keys and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from kvplan.documents import Finding
from kvplan.formats.lines import Lines
from kvplan.formats.render import Renderer, Tokens, block_keys
from kvplan.formats.rows import Keys, Options, Rows
from kvplan.units import show_percent

_BATCH = 128
_DEFAULT_BLOCK_TOKENS = 16  # vLLM's
_COUNTS_MAY_DIFFER = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request as rendered. `seed` keeps caches apart; `logged_tokens` is the prompt's length as the log has it."""

    line: int
    text: str
    model: str
    seed: tuple[str, ...]
    time_s: float
    output_tokens: int
    duration_s: float
    tenant: str | None
    session: str | None
    logged_tokens: int | None


class TextLog:
    """The requests of one file of text. No more than a batch of text is held; then only hashes and counts are."""

    def __init__(self, lines: Lines, options: Options, renderer: Renderer) -> None:
        self._lines = lines
        self._renderer = renderer
        self._block_tokens = options.block_tokens or _DEFAULT_BLOCK_TOKENS
        self._chosen = options.block_tokens is not None
        self._waiting: list[Prompt] = []
        self._facts: list[tuple[int, float, int, int, float, int]] = []
        self._names: list[tuple[str | None, str | None]] = []
        self._keys: list[Keys] = []
        self._models: Counter[str] = Counter()
        self._drift: list[float] = []  # prompt tokens as logged over those counted here

    def add(self, prompt: Prompt) -> None:
        """Take one request."""
        self._waiting.append(prompt)
        if len(self._waiting) == _BATCH:
            self._tokenise()

    def _tokenise(self) -> None:
        if not self._waiting:
            return
        for prompt, tokens in zip(
            self._waiting, self._renderer.tokens([prompt.text for prompt in self._waiting]), strict=True
        ):
            if self._renderer.doubled_start(tokens):
                self._lines.bad(prompt.line, "the prompt starts with two beginning-of-sequence tokens")
                continue
            self._keep(prompt, tokens)
        self._waiting.clear()

    def _keep(self, prompt: Prompt, tokens: Tokens) -> None:
        keys = block_keys(tokens, self._block_tokens, prompt.seed)
        self._keys.append(keys)
        self._models[prompt.model] += 1
        self._names.append((prompt.tenant, prompt.session))
        self._facts.append(
            (prompt.line, prompt.time_s, tokens.size, prompt.output_tokens, prompt.duration_s, keys.size)
        )
        if prompt.logged_tokens and tokens.size:
            self._drift.append(prompt.logged_tokens / tokens.size)

    def rows(self, findings: tuple[Finding, ...]) -> Rows:
        """Everything added, with `findings` before its own."""
        self._tokenise()
        columns = list(zip(*self._facts, strict=True)) or [()] * 6
        tenants, sessions = zip(*self._names, strict=True) if self._names else ((), ())
        return Rows(
            block_tokens=self._block_tokens,
            line=np.array(columns[0], np.int64),
            time_s=np.array(columns[1], np.float64),
            input_tokens=np.array(columns[2], np.int64),
            output_tokens=np.array(columns[3], np.int64),
            duration_s=np.array(columns[4], np.float64),
            count=np.array(columns[5], np.int64),
            keys=np.concatenate(self._keys) if self._keys else np.zeros(0, np.int64),
            tenant=tenants if any(tenants) else (),
            session=sessions if any(sessions) else (),
            findings=(*findings, *self._findings()),
        )

    def _findings(self) -> list[Finding]:
        how = "as given" if self._chosen else "vLLM's default; --block-tokens sets another"
        text = f"Prompts rendered with the tokenizer's chat template, in blocks of {self._block_tokens} tokens ({how})."
        findings = [Finding(severity="info", code="block-size", text=text)]
        if len(self._models) > 1:
            text = f"The log names {len(self._models)} models: they share nothing, and one tokenizer counts them all."
            findings.append(Finding(severity="warning", code="several-models", text=text))
        off = float(np.median(self._drift)) - 1 if self._drift else 0.0
        if abs(off) > _COUNTS_MAY_DIFFER:
            text = (
                f"The log's prompt token counts are {show_percent(abs(off))} {'above' if off > 0 else 'below'} "
                "those of this tokenizer (median): is it the served model's?"
            )
            findings.append(Finding(severity="warning", code="token-counts", text=text))
        return findings
