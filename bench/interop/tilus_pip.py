"""Products of pip's tilus 0.2 on a GPU, by the kernel of its own example, beside cuBLAS.

    python bench/interop/tilus_pip.py matmul_a16wx.py [--types i4,u4,f6e3m2] [--shapes 4096x4096] [--m 1,16] [--seconds 200]

Needs torch with CUDA, nvcc, tilus==0.2 and apache-tvm-ffi (bench/interop/tilus_pip.sh installs both without a network), and the file
examples/quantization/matmul_a16wx.py of https://github.com/NVIDIA/tilus, tag v0.2.0. f16 activations, groups of 128, integers without zero
points and floats. The example refuses unsigned types, which its kernels take: they get its kernels, and positive weights. Its autotuner tries
the example's 90 configurations at the first call. Weights rotate among copies that exceed the L2 cache eight times, as in `lpq bench tilus`;
the median of 9 replays of a CUDA graph counts. A line of JSON for each product: microseconds, the seconds that tuning took, and the largest
error relative to the largest result.
"""

import argparse
import importlib.util
import json
import time

import torch
import tvm_ffi
from replays import median_us

GROUP = 128
parser = argparse.ArgumentParser()
parser.add_argument("example")
parser.add_argument("--types", default="i4")
parser.add_argument("--shapes", default="4096x4096", help="K x N")
parser.add_argument("--m", default="1,16")
parser.add_argument("--seconds", type=float, default=1e9, help="begin no product later than this")
args = parser.parse_args()

spec = importlib.util.spec_from_file_location("example", args.example)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
example.QuantizedMatmul.debug_schedule = None  # which would stand for all 90
import tilus  # noqa: E402  after the example, which imports it
from tilus.hidet.ir import dtypes  # noqa: E402

NAMES = {"i8": "int8", "u8": "uint8", "f8e4m3": "float8_e4m3", "f8e5m2": "float8_e5m2"}


def dtype_of(name: str):
    """i4 is tilus' int4b, u4 its uint4b, f6e3m2 its float6_e3m2."""
    bits, rest = name[1], name[2:]
    kinds = {"i": f"int{bits}b", "u": f"uint{bits}b", "f": f"float{bits}_{rest}"}
    own = NAMES.get(name, kinds[name[0]])
    return getattr(tilus, own, None) or getattr(dtypes, own)


def layer_of(name: str, k: int, n: int):
    """The example's linear [n,k]; of an unsigned type it is made as one of a signed type, whose kernels and codes are replaced."""
    unsigned = name[0] == "u"
    signed = f"i{max(2, int(name[1]))}" if unsigned else name
    layer = example.QuantizedLinear(tilus.float16, dtype_of(signed), GROUP, k, n).cuda()
    if unsigned:
        dtype = dtype_of(name)
        both = dict(weight_tile=layer.weight_tile, a_dtype=tilus.float16, b_dtype=dtype)
        layer.w_dtype = dtype
        layer.change_layout_kernel = example.QuantizedMatmulChangeLayout(**both)
        layer.quantized_matmul_kernel = example.QuantizedMatmul(**both, group_size=GROUP)
        codes = torch.empty(k * n * dtype.nbits // 8, dtype=torch.uint8, device="cuda")
        layer.quantized_weight = torch.nn.Parameter(codes, requires_grad=False)
    return layer


def graph_microseconds(launch, products: int) -> float:
    graph = torch.cuda.CUDAGraph()
    for i in range(3):
        launch(i)
    torch.cuda.synchronize()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        for i in range(products):
            launch(i)
    return median_us(graph, products)


def rotation(weight_bytes: int) -> tuple[int, int]:
    copies = max(2, -(-8 * torch.cuda.get_device_properties(0).L2_cache_size // weight_bytes))
    return copies, max(20, copies)


def measured(name: str, k: int, n: int, m: int, layer, tuned: dict) -> dict:
    x = (torch.rand(m, k, dtype=torch.float16, device="cuda") - 0.5) / k**0.5
    y = torch.empty(m, n, dtype=torch.float16, device="cuda")
    copies, products = rotation(layer.quantized_weight.numel())
    weights = [layer.quantized_weight.detach().clone() for _ in range(copies)]
    scales = layer.scales

    def launch(i: int) -> None:
        layer.quantized_matmul_kernel(m, n, k, x.data_ptr(), weights[i % copies].data_ptr(), scales.data_ptr(), y.data_ptr())

    started = time.perf_counter()
    launch(0)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    want = x @ tuned["w"]
    error = ((y - want).abs().max() / want.abs().max()).item()
    us = graph_microseconds(launch, products)
    del weights
    copies, products = rotation(2 * k * n)
    dense = [tuned["w"].clone() for _ in range(copies)]
    cublas = graph_microseconds(lambda i: torch.matmul(x, dense[i % copies], out=want), products)
    return dict(type=name, k=k, n=n, m=m, us=us, cublasUs=cublas, firstCallSeconds=seconds, error=error)


started = time.perf_counter()
for name in args.types.split(","):
    for shape in args.shapes.split(","):
        k, n = map(int, shape.split("x"))
        layer = None
        for m in map(int, args.m.split(",")):
            if time.perf_counter() - started > args.seconds:
                print(json.dumps(dict(type=name, k=k, n=n, m=m, skipped="out of time")), flush=True)
                continue
            if layer is None:
                layer = layer_of(name, k, n)
                least = 0.0 if name[0] == "u" else 0.5
                weight = ((torch.rand(k, n, device="cuda") - least) / k**0.5).half()
                layer.load_and_quantize(weight.T.contiguous())
            try:
                print(json.dumps(measured(name, k, n, m, layer, {"w": weight})), flush=True)
            except Exception as error:  # one configuration of a peer must not end the others
                print(json.dumps(dict(type=name, k=k, n=n, m=m, failed=str(error)[:500])), flush=True)
                torch.cuda.synchronize()
        layer = weight = None
        torch.cuda.empty_cache()
