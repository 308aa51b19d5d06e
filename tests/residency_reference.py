"""The router's rules once more, written for reading: no heap, no units, every step looks at everything.

Integer times. Models of one size, a number of places, protected busy models, evictions that take no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Asked:
    """A request: when it came, for which model, how long it runs, when its client gives up; then what became of it."""

    at: int
    model: int
    runs: int
    patience: int | None = None
    started: int | None = None
    ended: int | None = None
    turn: int = 0
    done: bool = False
    left: bool = False


@dataclass
class Story:
    """What happened, in order."""

    loads: list[tuple[int, int]] = field(default_factory=list)
    evictions: list[tuple[int, int, int]] = field(default_factory=list)
    most: int = 0


def tell(requests: list[Asked], places: int, load_s: list[int]) -> Story:
    """Play `requests` (in order of arrival) and fill in what became of each."""
    story = Story()
    ready_at: dict[int, int] = {}  # models in memory or on the way there
    used: list[int] = []  # models by last use, the latest last
    line: list[int] = []
    arrived: list[Asked] = []
    todo = list(requests)

    def waiting(model: int) -> list[Asked]:
        return [one for one in arrived if one.model == model and one.started is None and not one.left]

    def start(one: Asked, now: int) -> None:
        one.started, one.ended = now, now + one.runs
        one.turn = 1 + max(other.turn for other in requests)
        touch(one.model)

    def touch(model: int) -> None:
        if model in used:
            used.remove(model)
        used.append(model)

    def busy(model: int) -> bool:
        return any(one.model == model and one.started is not None and not one.done for one in arrived)

    def make_room(now: int) -> None:
        """Whoever is in line gets a place of somebody idle; the first of them loads, the next when that one serves."""
        wanted = [model for model in line if model not in ready_at]
        for place, model in enumerate(wanted, 1):
            if len(ready_at) + place > places:
                there = [m for m in used if m in ready_at and ready_at[m] <= now and m not in line]
                idle = [m for m in there if not busy(m) and not waiting(m)]
                if not idle:
                    break
                story.evictions.append((now, idle[0], model))
                del ready_at[idle[0]]
        if line and line[0] not in ready_at and len(ready_at) < places:
            ready_at[line[0]] = now + load_s[line[0]]
            touch(line[0])
            story.loads.append((now, line[0]))
            story.most = max(story.most, len(ready_at))

    now = 0
    while True:
        moments = [one.at for one in todo] + [t for t in ready_at.values() if t > now]
        moments += [one.ended for one in arrived if one.ended is not None and one.ended > now]
        moments += [one.at + one.patience for model in range(len(load_s)) for one in waiting(model) if one.patience]
        if not moments:
            return story
        now = min(moments)
        # Completions first, one after the other as they began: whoever became idle may go at once, before a load ends.
        loading = {m for m, t in ready_at.items() if t == now}
        for model in loading:
            ready_at[model] = now + 1  # not yet
        for one in sorted((one for one in arrived if one.ended == now), key=lambda one: one.turn):
            one.done = True
            make_room(now)
        for model in loading:
            ready_at[model] = now
        for model in sorted(loading, key=lambda m: max(t for t, loaded in story.loads if loaded == m)):
            if model in line:
                line.remove(model)
            for one in waiting(model):
                start(one, now)
            make_room(now)
        for one in list(arrived):
            if one.started is None and not one.left and one.patience and one.at + one.patience == now:
                one.left = True
                if one.model in line and not waiting(one.model):
                    line.remove(one.model)
                    make_room(now)
        while todo and todo[0].at == now:
            one = todo.pop(0)
            arrived.append(one)
            if one.model in ready_at and ready_at[one.model] <= now:
                start(one, now)
            elif one.model not in ready_at and one.model not in line:
                line.append(one.model)
                make_room(now)
