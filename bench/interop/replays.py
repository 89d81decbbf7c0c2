"""How long a recorded CUDA graph takes."""

import torch

PASSES = 9


def median_us(graph: torch.cuda.CUDAGraph, products: int) -> float:
    """Microseconds of one of the graph's products: the median of nine replays after two."""
    times = []
    for _ in range(PASSES + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[2:])[PASSES // 2] * 1000 / products
