"""4-bit products of lpq_kernels beside vLLM's own on a CPU with AVX-512, in turns in one process.

    LPQ_KERNELS=native/build/liblpq_kernels.so.1 PYTHONPATH=python/src build/engines/vllm/bin/python bench/interop/cpu_products.py [THREADS [ROUNDS]]

A line of JSON a shape and M: the best seconds of each over the rounds, bf16 in and out, groups of 64. Weights are copies that together are
beyond the caches, so that each product reads memory; results of both are compared first. A round has some products of one, and then of the
other, each after a pause in which the other's threads have stopped to look for work.
"""

import json
import sys
import time

import torch
import vllm._custom_ops as vllm_ops

from lpq_kernels import ops

SHAPES = [(576, 576), (1536, 576), (576, 1536), (1024, 4096), (4096, 4096), (14336, 4096), (4096, 14336)]
GROUP = 64
# OpenMP's threads look for 0.2 s.
BURST, PAUSE = 12, 0.25


def vllm_words(codes: torch.Tensor) -> torch.Tensor:
    """[N, K] codes as its kernel reads them: eight outputs a word, sixteen outputs a block."""
    n, k = codes.shape
    shifts = torch.arange(8) * 4
    words = (codes.t().reshape(k, n // 8, 8).to(torch.int64) << shifts).sum(-1)
    return words.to(torch.int32).view(k, -1, 2).permute(1, 0, 2).reshape(-1, k * 2).contiguous()


def measured(n: int, k: int, threads: int, rounds: int) -> None:
    draw = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (n, k), generator=draw).to(torch.uint8)
    scales = (torch.rand((n, k // GROUP), generator=draw) / 64 + 0.01).bfloat16()
    block = ops.pack_codes("u4", codes, scales.float(), group=GROUP, zero=8)
    words, columns = vllm_words(codes), scales.t().contiguous()
    copies = max(2, min(256, (96 << 20) // block.numel()))
    blocks = [block, *(ops._empty(block.numel()).copy_(block) for _ in range(copies - 1))]
    theirs = [(words.clone(), columns.clone()) for _ in range(copies)]
    for m in (1, 16):
        x = torch.randn((m, k), generator=draw).bfloat16()

        def own(i: int, x: torch.Tensor = x) -> torch.Tensor:
            return ops.linear(x, blocks[i % copies], n, k)

        def other(i: int, x: torch.Tensor = x) -> torch.Tensor:
            return vllm_ops.cpu_gemm_wna16(x, *theirs[i % copies], None, None, 8, "vec")

        exact = x.double() @ ((codes.double() - 8) * scales.double().repeat_interleave(GROUP, 1)).t()
        size = exact.abs().max()
        # Both round products to bf16; vLLM's also rounds weights to it.
        assert (own(0).double() - exact).abs().max() <= size * 2.0**-8 and (other(0).double() - exact).abs().max() <= size * 2.0**-5
        best = {"lpq": 1e9, "vllm": 1e9}
        for first in range(0, rounds * BURST, BURST):
            for name, run in (("lpq", own), ("vllm", other)):
                time.sleep(PAUSE)
                for i in range(first, first + BURST):
                    start = time.perf_counter()
                    run(i)
                    best[name] = min(best[name], time.perf_counter() - start)
        print(json.dumps({"n": n, "k": k, "m": m, "threads": threads, **best, "ratio": best["vllm"] / best["lpq"]}), flush=True)


def main(threads: str = "2", rounds: str = "6") -> None:
    torch.set_num_threads(int(threads))
    for n, k in SHAPES:
        measured(n, k, int(threads), int(rounds))


if __name__ == "__main__":
    main(*sys.argv[1:])
