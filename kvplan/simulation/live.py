"""A request on its way, and a transfer that it waits for."""

from __future__ import annotations

WAITING, PARKED, LOADING, PREFILL, DECODE, DONE, GONE = range(7)


class Live:
    """One request: what it asks for, where it stands, what it holds, and when what happened to it.

    `path` are its full blocks, of which it may reuse the first `reusable` (the last token is always computed). `held`
    are the blocks of its path that it pins, `owned` those of them that it computes or loads, as places on the path.
    `answer` are the full blocks that its output completes, where a later prompt of the log says which they are. `rank`
    is its place in the order of arrivals. `epoch` rises whenever it loses its place, so that late events know.
    """

    __slots__ = (
        "admitted_at",
        "answer",
        "arrived_at",
        "cause",
        "emitted",
        "ended_at",
        "entered",
        "epoch",
        "first_token_at",
        "held",
        "hits",
        "hold",
        "index",
        "input_tokens",
        "loaded_at",
        "loading_since",
        "output_tokens",
        "owned",
        "path",
        "private",
        "progress",
        "rank",
        "replica",
        "reusable",
        "session",
        "state",
        "target",
    )

    def __init__(
        self, index: int, arrived_at: float, sizes: tuple[int, int], path: list[int], block_tokens: int, session: int
    ) -> None:
        self.index = index
        self.arrived_at = arrived_at
        self.input_tokens, self.output_tokens = sizes[0], max(1, sizes[1])
        self.path = path
        self.reusable = min(len(path), (self.input_tokens - 1) // block_tokens)
        self.session = session
        self.answer: list[int] = []
        self.rank = -1  # not there yet
        self.state = WAITING
        self.replica = 0
        self.epoch = 0
        self.emitted = 0
        self.entered = 0  # decode step count when it began to decode
        self.progress = 0
        self.target = self.input_tokens
        self.held: list[int] = []
        self.owned: list[int] = []
        self.hold: Hold | None = None
        self.private = 0
        self.hits = (0, 0, 0)  # tokens from GPU, host, disk at first admission
        self.admitted_at: float | None = None
        self.loading_since: float | None = None
        self.loaded_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.cause = ""


class Load:
    """A transfer to the GPU: `host` and `disk` blocks of a request's path, from where they are pinned."""

    __slots__ = ("disk", "epoch", "failed", "generations", "host", "request", "start")

    def __init__(self, request: Live, start: int, host: list[int], disk: list[int]) -> None:
        self.request = request
        self.epoch = request.epoch
        self.start = start
        self.host = host
        self.disk = disk
        self.failed = False
        self.generations = (0, 0)


class Hold:
    """The shared blocks of one stay on the GPU, kept until the request is through and the last copy of them too."""

    __slots__ = ("blocks", "copies", "generation", "over")

    def __init__(self, generation: int) -> None:
        self.blocks: list[int] = []
        self.copies = 0
        self.over = False
        self.generation = generation
