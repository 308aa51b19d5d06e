"""What this host's processors copy from memory to memory: what a drive is held against, to tell it from a cache.

Data that a cache hands out is copied once by each thread that asks for it. So a drive that comes to more than half of
what all processors can copy was not a drive.
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from kvplan.probing.interrupts import join_all
from kvplan.units import MiB

# Of what all processors copy at once, the share above which a cache answered.
CACHE_SHARE = 0.5
_PIECE = 32 * MiB  # more than a core's share of the last cache
_SMALLEST = 4 * MiB
_MOST_THREADS = 16
_PASSES, _LONGEST_S = 8, 0.5


def bytes_per_s(usable_bytes: int) -> float | None:
    """Bytes copied in a second by all processors of this process at once; None where there is no memory to try it in.

    Each thread counts with its quickest pass, since whatever else runs only ever adds to one. Takes up to half a second
    and an eighth of `usable_bytes`.
    """
    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    piece = min(_PIECE, usable_bytes // 8 // (2 * threads)) // MiB * MiB
    if piece < _SMALLEST:
        return None
    best = [0.0] * threads
    ready = threading.Barrier(threads)

    def copy(number: int) -> None:
        source, target = (np.full(piece, number, dtype=np.uint8) for _ in range(2))
        try:
            ready.wait()
        except threading.BrokenBarrierError:
            return
        until = time.perf_counter() + _LONGEST_S
        for _ in range(_PASSES):
            began = time.perf_counter()
            np.copyto(target, source)
            ended = time.perf_counter()
            best[number] = max(best[number], piece / (ended - began))
            if ended >= until:
                return

    crew = [threading.Thread(target=copy, args=(number,), name="kvplan-copy") for number in range(threads)]
    try:
        for worker in crew:
            worker.start()
    except BaseException:
        ready.abort()  # those that started wait for the others
        raise
    finally:
        join_all(crew)
    return sum(best)
