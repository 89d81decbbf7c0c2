"""Threads of the library in a program whose own are bound to a processor each."""

import os
import subprocess
import sys

PROGRAM = """
import os, threading
import torch
import lpq_kernels
from lpq_kernels import _threads
first, second = sorted(os.sched_getaffinity(0))[:2]
stop = threading.Event()
ready = threading.Event()
def other():
    os.sched_setaffinity(0, {second})
    ready.set()
    stop.wait()
threading.Thread(target=other, daemon=True).start()
ready.wait()
os.sched_setaffinity(0, {first})
before = set(os.listdir("/proc/self/task"))
_threads.spread(2)
masks = []
for task in set(os.listdir("/proc/self/task")) - before:
    try:
        masks.append(os.sched_getaffinity(int(task)))
    except ProcessLookupError:  # the one that made them
        pass
print(len(masks) > 0 and all(mask == {first, second} for mask in masks))
stop.set()
"""


def test_they_share_all_of_its_processors():
    if len(os.sched_getaffinity(0)) < 2:
        return  # nothing to share
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ran.stdout.strip() == "True", ran.stdout + ran.stderr
