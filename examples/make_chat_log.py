"""Write examples/chat.jsonl.gz: about 2,000 chat requests of one afternoon, made up but shaped like real traffic.

    python examples/make_chat_log.py [FILE]

Two tenants share a server and a platform preamble. `acme` runs a support chat: a long system prompt, sessions of a few
turns, some taken up again after a break. `borealis` runs an agent with tools, whose sessions grow fast, and lets people
upload documents, most of which are read once. The same seed gives the same text; nothing in it comes from a real log.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]

SEED = 20250301
START = 1_740_834_000.0  # 2025-03-01 13:00 UTC
SPAN_S = 3 * 3600.0
SUPPORT_SESSIONS, AGENT_SESSIONS, UPLOADS = 190, 50, 240

SUBJECTS = (
    *("the customer", "the warehouse", "our carrier", "the invoice", "your account", "the replacement part"),
    *("the service team", "the second shipment", "the contract", "the sensor", "the night shift", "the pump station"),
)
VERBS = (
    *("confirms", "reports", "rejects", "has not received", "is still waiting for", "can cancel", "has returned"),
    *("will replace", "asks about", "approves", "measures", "records"),
)
OBJECTS = (
    *("order {n}", "the delivery of {n} units", "ticket {n}", "a refund of {n} euros", "serial number {n}"),
    *("the warranty of unit {n}", "page {n} of the manual", "the reading of {n} millibar", "invoice {n}"),
)
ENDS = (
    *("since Monday", "within two working days", "as the policy says", "before the end of the month", "by mistake"),
    *("after the last inspection", "without a signature", "at no extra cost", "for the third time", "as agreed"),
)
RULES = (
    *("Answer in the language of the question", "Never promise a date that the carrier has not confirmed"),
    *("Ask for the order number before you look anything up", "Quote the policy paragraph you rely on"),
    *("Offer a replacement before a refund", "Escalate when a person mentions an injury or a fire"),
    *("Keep answers under two hundred words", "Do not reveal internal ticket numbers"),
)
TOOLS: tuple[Message, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": f"The {key} to use."} for key in keys},
                "required": list(keys[:1]),
            },
        },
    }
    for name, description, keys in (
        ("read_sensor", "Read the latest values of one sensor.", ("sensor", "period")),
        ("search_manual", "Search the maintenance manuals.", ("query", "page")),
        ("open_ticket", "Open a ticket for the service team.", ("title", "text", "priority")),
        ("list_parts", "List the spare parts of one station.", ("station",)),
    )
)


def sentence(rng: random.Random) -> str:
    """One plain sentence with a number in it."""
    words = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} {rng.choice(ENDS)}."
    return words[0].upper() + words[1:].format(n=rng.randrange(10_000))


def prose(rng: random.Random, sentences: int) -> str:
    """A paragraph."""
    return " ".join(sentence(rng) for _ in range(sentences))


def readings(rng: random.Random, lines: int) -> str:
    """A table as people paste it, different in every line."""
    return "\n".join(
        f"{i:04d} station {rng.randrange(90) + 10} pressure {rng.randrange(900) + 100} millibar "
        f"flow {rng.randrange(90) + 10} state {rng.choice(('ok', 'ok', 'ok', 'ok', 'late', 'fault'))}"
        for i in range(lines)
    )


@dataclass(frozen=True, slots=True)
class Prompts:
    """The texts that requests share."""

    support: str
    agent: str
    reader: str

    @classmethod
    def written(cls) -> Prompts:
        """The same in every run."""
        rng = random.Random(SEED)
        platform = "You work for the shared assistant platform. " + prose(rng, 20)
        rules = "\n".join(f"{i}. {rng.choice(RULES)}. {sentence(rng)}" for i in range(1, 31))
        return cls(
            support=f"{platform}\n\nYou are the support assistant of Acme Pumps.\n{rules}\n\n{prose(rng, 12)}",
            agent=f"{platform}\n\nYou are the maintenance agent of Borealis Water. Use the tools.\n{prose(rng, 25)}",
            reader=f"{platform}\n\nYou read documents for Borealis Water and answer one question about each.",
        )


@dataclass(slots=True)
class Session:
    """One conversation: every request repeats what was said before."""

    rng: random.Random
    tenant: str
    name: str
    messages: list[Message]
    time_s: float
    tools: tuple[Message, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, *messages: Message, answer: Message) -> None:
        """Send the messages at the session's time, and take the answer into the history."""
        self.messages += messages
        length = sum(len(json.dumps(message)) for message in self.messages)
        output_tokens = max(8, len(json.dumps(answer)) // 5)
        duration_s = (0.05 + length / 5 / 9000 + output_tokens * 0.022) * self.rng.uniform(0.9, 1.3)
        body: dict[str, Any] = {"model": "assistant-8b", "messages": list(self.messages)}
        if self.tools:
            body["tools"] = list(self.tools)
        self.rows.append(
            {
                "timestamp": round(self.time_s, 3),
                "tenant": self.tenant,
                "session_id": self.name,
                "duration_ms": round(duration_s * 1000),
                "body": body,
                "usage": {"completion_tokens": output_tokens},
            }
        )
        self.messages = [*self.messages, answer]
        self.time_s += duration_s


def support_session(rng: random.Random, number: int, prompts: Prompts, start: float) -> Session:
    """A few turns a minute or so apart; some sessions are taken up again after a break."""
    session = Session(rng, "acme", f"acme-{number}", [{"role": "system", "content": prompts.support}], start)
    for turn in range(min(14, 2 + int(rng.expovariate(1 / 3.5)))):
        if turn:
            session.time_s += rng.lognormvariate(4.0, 0.7)
        if turn == 3 and rng.random() < 0.4:
            session.time_s += rng.uniform(900, 4800)
        question = {"role": "user", "content": prose(rng, rng.randrange(1, 5))}
        session.ask(question, answer={"role": "assistant", "content": prose(rng, rng.randrange(3, 12))})
    return session


def agent_session(rng: random.Random, number: int, prompts: Prompts, start: float) -> Session:
    """A task given once, then a tool call every few seconds, each with a result that stays in the history."""
    first = {"role": "system", "content": prompts.agent}
    session = Session(rng, "borealis", f"agent-{number}", [first], start, TOOLS)
    news: list[Message] = [{"role": "user", "content": prose(rng, 6)}]
    for step in range(rng.randrange(5, 22)):
        tool = rng.choice(TOOLS)["function"]["name"]
        arguments = json.dumps({"query": sentence(rng)})
        call = {"id": f"call-{step}", "type": "function", "function": {"name": tool, "arguments": arguments}}
        session.ask(*news, answer={"role": "assistant", "content": "", "tool_calls": [call]})
        news = [{"role": "tool", "tool_call_id": f"call-{step}", "content": readings(rng, rng.randrange(3, 15))}]
        session.time_s += rng.uniform(1, 12)
    session.ask(*news, answer={"role": "assistant", "content": prose(rng, 8)})
    return session


def upload(rng: random.Random, number: int, prompts: Prompts, start: float) -> Session:
    """One long document and a question; most are never seen again, one in four gets more questions minutes later."""
    session = Session(rng, "borealis", f"upload-{number}", [{"role": "system", "content": prompts.reader}], start)
    text = f"{prose(rng, 6)}\n\n{readings(rng, min(400, 40 + int(rng.expovariate(1 / 80))))}\n\n"
    for turn in range(rng.randrange(2, 5) if rng.random() < 0.25 else 1):
        if turn:
            session.time_s += rng.lognormvariate(6.3, 0.9)
        question = {"role": "user", "content": f"{'' if turn else text}Question: {sentence(rng)}"}
        session.ask(question, answer={"role": "assistant", "content": prose(rng, 6)})
    return session


def log() -> Iterator[dict[str, Any]]:
    """All requests in order of arrival."""
    rng = random.Random(SEED + 1)
    prompts = Prompts.written()
    kinds = [support_session] * SUPPORT_SESSIONS + [agent_session] * AGENT_SESSIONS + [upload] * UPLOADS
    sessions = [
        kind(rng, number, prompts, START + SPAN_S * rng.triangular(0, 1, 0.45)) for number, kind in enumerate(kinds)
    ]
    rows = [row for session in sessions for row in session.rows if row["timestamp"] < START + SPAN_S]
    return iter(sorted(rows, key=lambda row: row["timestamp"]))


def write(path: Path) -> int:
    """Write the log, the same bytes every time for the same zlib. Returns how many requests it has."""
    lines = [json.dumps(row, separators=(",", ":")) for row in log()]
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as out:
        out.write("".join(f"{line}\n" for line in lines).encode())
    return len(lines)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("chat.jsonl.gz")
    print(f"{target}: {write(target):,} requests")
