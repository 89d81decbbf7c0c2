"""What a product costs the host, in µs: from C++ to the launch, and as an operation of torch beside F.linear."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

N, K, GROUP = 4096, 4096, 128
ROUNDS, CALLS = 20, 200

ENTRY = r"""
#include <chrono>
#include <cstdint>
#include <cstddef>
using Gemm = int (*)(const void*, int64_t, const void*, void*, void*, size_t, void*, unsigned);
extern "C" double entry(Gemm gemm, const void* weight, int64_t m, const void* x, void* y, void* workspace, size_t bytes, void* stream, int calls) {
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i)
    if (gemm(weight, m, x, y, workspace, bytes, stream, 0) != 0) return -1;
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count() / calls;
}
"""


BARE = r"""
#include <chrono>
__global__ void empty() {}
extern "C" double bare(void* stream, int calls) {
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) empty<<<1, 32, 0, static_cast<cudaStream_t>(stream)>>>();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count() / calls;
}
"""


def bare_launch(folder: str, stream: int) -> float | None:
    """What the launch of an empty kernel costs this host, where nvcc is at hand: an entry takes that and what lpq adds."""
    import torch

    compiler = shutil.which("nvcc")
    if compiler is None:
        return None
    source, made = Path(folder) / "bare.cu", Path(folder) / "bare.so"
    source.write_text(BARE)
    subprocess.run([compiler, "-O2", "-shared", "-Xcompiler", "-fPIC", "-o", str(made), str(source)], check=True)
    function = ctypes.CDLL(str(made)).bare
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_int]

    def once() -> float:
        torch.cuda.synchronize()
        took: float = function(stream, CALLS)
        torch.cuda.synchronize()
        return took

    once()
    return round(least(once), 2)


def weight(device: str) -> Any:
    """A linear of random codes on the device, as the plugin makes one."""
    import torch

    import lpq_kernels as lpq

    draw = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (N, K), dtype=torch.uint8, generator=draw)
    scales = torch.rand((N, K // GROUP), generator=draw) / 64
    return lpq.pack_codes("u4", codes, scales, group=GROUP, zero=8, device=device, dtype=torch.bfloat16)


def least(measure: Any) -> float:
    """The least of many rounds: what else the machine does only adds."""
    return min(measure() for _ in range(ROUNDS))


def call(cell: dict[str, Any], device: str) -> dict[str, Any]:
    """torch.ops.lpq_kernels.linear and F.linear, calls that only queue work: so few rows that the device keeps up, and waits between rounds."""
    import torch
    from torch.nn import functional

    import lpq_kernels as lpq

    block = weight(device)
    x = torch.randn((1, K), dtype=torch.bfloat16, device=device)
    dense = torch.randn((N, K), dtype=torch.bfloat16, device=device)

    def rounds(step: Any) -> float:
        def once() -> float:
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(CALLS):
                step()
            took = time.perf_counter() - begun
            torch.cuda.synchronize()
            return took / CALLS * 1e6

        once()
        return least(once)

    with torch.inference_mode():
        own = rounds(lambda: torch.ops.lpq_kernels.linear(x, block, N, K))
        theirs = rounds(lambda: functional.linear(x, dense))
    told = f"{own:.2f} µs, F.linear {theirs:.2f} µs"
    return {"outcome": "ran", "operation": round(own, 2), "linear": round(theirs, 2), "operations": lpq.operations, "told": told}


def entry(cell: dict[str, Any], device: str) -> dict[str, Any]:
    """lpq_gemm of the C interface, called in a loop of C++ that is compiled here."""
    import torch

    from lpq_kernels import _device

    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return {"outcome": "failed", "reason": "no C++ compiler"}
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "entry.cpp", Path(folder) / "entry.so"
        source.write_text(ENTRY)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-std=c++17", str(source), "-o", str(made)], check=True)
        function = ctypes.CDLL(str(made)).entry
        bare = bare_launch(folder, torch.cuda.current_stream().cuda_stream) if device == "cuda" else None
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] + [ctypes.c_void_p] * 3 + [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int]
    block = weight(device)
    found: dict[str, float] = {}
    for m in (1, 16):
        x = torch.randn((m, K), dtype=torch.bfloat16, device=device)
        y = torch.empty((m, N), dtype=torch.bfloat16, device=device)
        call = _device.prepared(block, x, y)
        arguments = (call.gemm, call.weight, m, x.data_ptr(), y.data_ptr(), call.workspace, call.bytes, call.stream)

        def once(arguments: tuple[Any, ...] = arguments) -> float:
            torch.cuda.synchronize()
            took: float = function(*arguments, CALLS)
            torch.cuda.synchronize()
            if took < 0:
                raise RuntimeError("lpq_gemm failed")
            return took

        once()
        found[str(m)] = round(least(once), 2)
    told = ", ".join(f"{took} µs at M = {m}" for m, took in found.items()) + (f"; an empty kernel {bare} µs" if bare is not None else "")
    return {"outcome": "ran", "microseconds": found, "bare": bare, "told": told}
