"""What a call of lpq_kernels' operations costs the host: a product of 32 x 32 and of 576 x 576 at M = 1 on one thread, in µs.

LPQ_TORCH_OPS=FILE|ctypes PYTHONPATH=python/src python bench/interop/call_cost.py: one line of JSON. The lowest of 40 runs of 500 calls.
"""

import json
import time

import torch

from lpq_kernels import ops

torch.set_num_threads(1)
made = {"operations": ops.operations, "torch": torch.__version__}
for size in (32, 576):
    codes = torch.randint(0, 16, (size, size), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    block, x, best = ops.pack_codes("u4", codes, torch.ones(size, 1)), torch.randn(1, size), float("inf")
    with torch.no_grad():
        for _ in range(40):
            start = time.perf_counter()
            for _ in range(500):
                ops.linear(x, block, size, size)
            best = min(best, (time.perf_counter() - start) / 500)
    made[f"{size}x{size}"] = round(best * 1e6, 2)
print(json.dumps(made))
