"""Where the library's threads run, in programs that bind each of their own to one processor, as vLLM does."""

from __future__ import annotations

import os
import threading
from functools import lru_cache

import torch

from . import ops


def bound_processors() -> set[int]:
    """The processors of this process' threads that may run on one only."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            mask = os.sched_getaffinity(int(task))
        except ProcessLookupError:  # it ended meanwhile
            continue
        if len(mask) == 1:
            found |= mask
    return found


@lru_cache(maxsize=None)
def spread(threads: int) -> None:
    """Makes the library's `threads` threads on all processors that the program's are bound to, before a product makes them.

    A thread inherits its maker's processors: made by one that is bound, all of them would share one.
    """
    processors = bound_processors()
    if threads < 2 or len(os.sched_getaffinity(0)) > 1 or len(processors) < 2:
        return

    def make() -> None:
        os.sched_setaffinity(0, processors)
        ops.pack_codes("u4", torch.zeros((32, 32), dtype=torch.uint8), torch.ones(32, 1), threads=threads)

    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
