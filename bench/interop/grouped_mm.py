"""torch's grouped product of experts in bf16, of the shapes of lpq_gpu_experts --time: python grouped_mm.py OUT.json

Tokens are spread evenly at random, as there. Microseconds of one product: a CUDA graph of several draws, the median of 9
replays. Weights [E, N, K] lie as a checkpoint has them.
"""

import json
import statistics
import sys

import torch

SHAPES = [
    ("Mixtral 8x7B, gate and up", 8, 2, 28672, 4096),
    ("Mixtral 8x7B, down", 8, 2, 4096, 14336),
    ("Qwen3 30B-A3B, gate and up", 128, 8, 1536, 2048),
    ("Qwen3 30B-A3B, down", 128, 8, 2048, 768),
    ("GPT-OSS 120B, gate and up", 128, 4, 5760, 2880),
    ("DeepSeek V3, down", 256, 8, 7168, 2048),
    ("Phi-3.5-MoE, gate and up", 16, 2, 12800, 4096),
    ("OLMoE, down", 64, 8, 2048, 1024),
]
TOKENS = [1, 4, 16, 64, 256, 1024, 4096]


def offsets(experts, per_token, tokens, generator):
    chosen = torch.stack([torch.randperm(experts, generator=generator)[:per_token] for _ in range(tokens)])
    return torch.bincount(chosen.flatten(), minlength=experts).cumsum(0).to(torch.int32).cuda()


def micros(x, weights, draws):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for ends in draws:
            torch._grouped_mm(x, weights, offs=ends)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for ends in draws:
                torch._grouped_mm(x, weights, offs=ends)
        times = []
        for _ in range(11):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / len(draws))
    return statistics.median(times[2:])


def main():
    generator = torch.Generator().manual_seed(0)
    rows = []
    for name, experts, per_token, n, k in SHAPES:
        weights = torch.randn(experts, n, k, dtype=torch.bfloat16, device="cuda").transpose(-2, -1)
        for tokens in TOKENS:
            x = torch.randn(tokens * per_token, k, dtype=torch.bfloat16, device="cuda")
            draws = [offsets(experts, per_token, tokens, generator) for _ in range(24 if tokens <= 16 else 4)]
            us = micros(x, weights, draws)
            rows.append({"shape": name, "tokens": tokens, "us": us})
            print(f"{name:28} {tokens:5} tokens {us:9.1f} us", flush=True)
        del weights
    with open(sys.argv[1], "w") as file:
        json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file, indent=1)


main()
