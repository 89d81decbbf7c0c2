"""torch.ops.lpq_kernels.linear beside F.linear in CUDA graphs: python torch_operation.py OUT.json, with the wheel on PYTHONPATH.

bf16, u4 in groups of 128 with scales in bf16, linears of a Llama-3-8B block; as many weights as L2 does not hold. Microseconds
of one product, the median of 9 replays.
"""

import json
import statistics
import sys

import lpq_kernels as lpq
import torch
from torch.nn import functional

SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
GROUP, PAST_L2, ROUNDS = 128, 150_000_000, 4


def packed(n, k, generator):
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda", generator=generator)
    scales = (torch.rand((n, k // GROUP), device="cuda", generator=generator) / 64).to(torch.bfloat16)
    return lpq.pack_codes("u4", codes, scales, group=GROUP, zero=8, device="cuda", dtype=torch.bfloat16)


def micros(calls):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(ROUNDS):
            for call in calls:
                call()
    times = []
    for _ in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / (ROUNDS * len(calls)))
    return statistics.median(times)


@torch.inference_mode()
def main():
    generator = torch.Generator(device="cuda").manual_seed(0)
    rows = []
    for n, k in SHAPES:
        blocks = [packed(n, k, generator) for _ in range(PAST_L2 * 2 // (n * k) + 2)]
        dense = [torch.randn((n, k), dtype=torch.bfloat16, device="cuda") for _ in range(max(2, PAST_L2 // (2 * n * k)))]
        for m in (1, 16, 64, 256):
            x = torch.randn((m, k), dtype=torch.bfloat16, device="cuda")
            own = micros([lambda b=b, x=x, n=n, k=k: torch.ops.lpq_kernels.linear(x, b, n, k) for b in blocks])
            theirs = micros([lambda w=w, x=x: functional.linear(x, w) for w in dense])
            rows.append({"n": n, "k": k, "m": m, "lpq_us": own, "f_linear_us": theirs})
            print(f"{n:6} x {k:6}, {m:4} tokens: {own:8.1f} us, F.linear {theirs:8.1f} us", flush=True)
    with open(sys.argv[1], "w") as file:
        json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file, indent=1)


main()
