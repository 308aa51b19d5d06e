"""The request-log formats that kvplan reads, one file a family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvplan.formats import (
    agentic,
    bailian,
    chat,
    delimited,
    dynamo,
    kvevents,
    lengths,
    litellm,
    lmcache,
    mooncake,
    otel,
    parquet,
    sessions,
    sharegpt,
    weka,
)
from kvplan.formats.lines import Lines
from kvplan.formats.roles import DURATION_UNITS, ROLES, TIMES
from kvplan.formats.rows import Options, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One format: `detect` decides from one decoded line, `read` takes a whole file, `looks` describes it to a user.

    Tables are not told from a decoded line (`detect` is None), but from their first bytes and their header. A format
    that `streams` gives its block ids to a sink as it is read. `roles` are those that --columns can name in it.
    """

    name: str
    looks: str
    detect: Callable[[dict[str, Any]], bool] | None
    read: Callable[[Lines, Options], Rows]
    streams: bool = False
    roles: tuple[str, ...] = ()


_DELAYED = tuple(role for role in TIMES if role != "time")  # a delay counts from the turn before: its unit is needed
_HASHED = ("input_tokens", "output_tokens", "hash_ids")
_BAILIAN = (*TIMES, *_HASHED)
_SESSIONS = (*_DELAYED, *_HASHED, "block_tokens", "session")
_LENGTHS = (*TIMES, "input_tokens", "output_tokens", *DURATION_UNITS, "session")
_CHAT = (*TIMES, *DURATION_UNITS, "session")

FAMILIES = (
    Family(
        name="agentic-mooncake",
        looks="a header line with schema dynamo.agentic_mooncake, or lines with hash_ids and wait_for",
        detect=agentic.detect,
        read=agentic.read,
    ),
    Family(
        name="bailian",
        looks="lines with chat_id, timestamp, input_length, hash_ids",
        detect=bailian.detect,
        read=bailian.read,
        roles=_BAILIAN,
    ),
    Family(
        name="mooncake-sessions",
        looks="lines with session_id, delay, input_length, hash_ids",
        detect=sessions.detect,
        read=sessions.read,
        roles=_SESSIONS,
    ),
    Family(
        name="mooncake-delta",
        looks="the same, each line with what its turn adds",
        detect=None,
        read=sessions.read_deltas,
        roles=_SESSIONS,
    ),
    Family(
        name="mooncake",
        looks="lines with timestamp, input_length, output_length, hash_ids",
        detect=mooncake.detect,
        read=mooncake.read,
        streams=True,
        roles=ROLES,
    ),
    Family(
        name="lengths",
        looks="lines with timestamp, input_length, output_length, without hash_ids",
        detect=lengths.detect,
        read=lengths.read,
        roles=_LENGTHS,
    ),
    Family(
        name="weka",
        looks="a session an object, with block_size and requests",
        detect=weka.detect,
        read=weka.read,
    ),
    Family(
        name="lmcache",
        looks="lines with chunk_hashes and seq_len",
        detect=lmcache.detect,
        read=lmcache.read,
    ),
    Family(
        name="dynamo",
        looks="lines with schema dynamo.request.trace.v1",
        detect=dynamo.detect,
        read=dynamo.read,
    ),
    Family(
        name="kv-events",
        looks="lines with events of type BlockStored",
        detect=kvevents.detect,
        read=kvevents.read,
    ),
    Family(
        name="parquet",
        looks="a Parquet table with a request a row",
        detect=None,
        read=parquet.read,
        streams=True,
        roles=ROLES,
    ),
    Family(
        name="csv",
        looks="a header that names prompt lengths, then a request a line",
        detect=None,
        read=delimited.read,
        streams=True,
        roles=ROLES,
    ),
    Family(
        name="otel",
        looks="spans with gen_ai attributes, alone or in resourceSpans",
        detect=otel.detect,
        read=otel.read,
    ),
    Family(
        name="litellm",
        looks="lines with startTime, endTime, prompt_tokens, messages",
        detect=litellm.detect,
        read=litellm.read,
    ),
    Family(
        name="sharegpt",
        looks="conversations with from and value",
        detect=sharegpt.detect,
        read=sharegpt.read,
    ),
    Family(
        name="openai-chat",
        looks="lines with messages or prompt, alone or in body or request",
        detect=chat.detect,
        read=chat.read,
        roles=_CHAT,
    ),
)
