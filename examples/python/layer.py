"""Computes a layer of an artifact with lpq's kernels and compares it with torch's product of the dequantized weight.

    python3 layer.py ARTIFACT MODULE [--tokens 1,16,64] [--dtype f16] [--codes TILUS_ARTIFACT] [--time]

The weight is dequantized here, from bytes of layout tilus as docs/internals/layouts/tilus.md has them; --codes names the artifact they are of, where
ARTIFACT itself has another layout (both packed from one checkpoint). Exits with 1 when a difference is beyond its bound, and with 77
where there is no GPU.
"""

import argparse
import sys

import lpq_kernels as lpq


def decode(torch, code, type_name):
    """Numbers of codes (int64), f64."""
    bits = int(type_name[1])
    if type_name[0] != "f":
        return (torch.where(code >> (bits - 1) > 0, code - (1 << bits), code) if type_name[0] == "i" else code).double()
    exponent, mantissa = int(type_name[3]), int(type_name[5])
    bias = (1 << (exponent - 1)) - 1 if exponent > 1 else 0
    power, fraction = code >> mantissa & ((1 << exponent) - 1), code & ((1 << mantissa) - 1)
    whole = torch.where(power > 0, fraction + (1 << mantissa), fraction).double()
    size = whole * torch.exp2((torch.where(power > 0, power, 1) - bias - mantissa).double())
    return torch.where(code >> (bits - 1) > 0, -size, size)


def dequantize(torch, artifact, name):
    """[N, K] f64 on the GPU, each weight's scale, bits, and whether codes are integers."""
    info = artifact.module(name)
    assert info.layout_name == b"tilus", "--codes must name an artifact of layout tilus"
    type_name = info.type.decode()
    bits = int(type_name[1])
    packed, scales = artifact.tensor(name + ".packed"), artifact.tensor(name + ".scales")
    words = torch.frombuffer(packed.copy(), dtype=torch.int32).cuda()
    n = torch.arange(info.n, device="cuda").view(-1, 1)
    k = torch.arange(info.k, device="cuda").view(1, -1)
    np, kp = n % 32, k % 128
    lane, half, chunk = 4 * (np % 8) + kp % 8 // 2, kp % 2, kp // 32
    pair = 4 * (kp % 32 // 8) + np // 8
    fields = 16 // bits
    left = 16 - fields * bits
    code = torch.zeros((info.n, info.k), dtype=torch.int64, device="cuda")
    for m in range(bits):
        word, at = pair // fields, pair % fields * bits + m
        if left:
            y = pair - fields * bits
            if bits in (3, 5):
                rest_word, rest_at = torch.full_like(pair, m), torch.full_like(pair, 16 - left)
            elif bits == 6:
                rest_word, rest_at = (y, torch.full_like(pair, 16 - left + m)) if m < 4 else (4 + y // 2, 16 - left + 2 * (y % 2) + m - 4)
            else:
                rest_word, rest_at = (3 * y + m // 2, torch.full_like(pair, 16 - left + m % 2)) if m < 6 else (torch.full_like(pair, 6), 16 - left + y)
            whole = pair < fields * bits
            word, at = torch.where(whole, word, rest_word), torch.where(whole, at, rest_at)
        place = chunk * bits + word
        index = (n // 32 * (info.k_padded // 128) + k // 128) * 128 * bits + 128 * (place // 4) + 4 * lane + place % 4
        code |= (words[index].long() >> (16 * half + at) & 1) << m
    group = k // info.group if info.group else torch.zeros_like(k)
    side = (n // 32 * scales.dims[1] + group) * 32 + 4 * (np % 8) + np // 8

    def numbers(tensor):
        kind = {"f16": torch.float16, "bf16": torch.bfloat16, "u8": torch.uint8}[lpq.DTYPES[tensor.dtype]]
        return torch.frombuffer(tensor.copy(), dtype=kind).cuda().double()[side]

    scale = numbers(scales)
    zero = info.zero
    try:
        zero = numbers(artifact.tensor(name + ".zeros"))
    except lpq.Error as error:
        if error.name != "LPQ_ERROR_NOT_FOUND":
            raise
    return (decode(torch, code, type_name) - zero) * scale, scale.abs().expand(info.n, info.k), bits, type_name[0] != "f"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("artifact")
    parser.add_argument("module")
    parser.add_argument("--codes")
    parser.add_argument("--tokens", default="1,16,33,128")
    parser.add_argument("--dtype", choices=["f16", "bf16"], default="f16")
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("skipped: there is no torch")
        return 77
    if not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
        return 77
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[options.dtype]
    context = lpq.Context()
    with lpq.Artifact(options.artifact) as artifact:
        info = artifact.module(options.module)
        layout = info.layout_name.decode()
        if layout in ("comet", "sparse_marlin"):
            print("this program has no reference for codes of activations and 2:4 weights: examples/c/layer.c has")
            return 2
        linear = context.load(artifact, options.module, dtype)
        bias = None
        if info.bias:
            stored = artifact.tensor(options.module + ".bias")
            kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[lpq.DTYPES[stored.dtype]]
            bias = torch.frombuffer(stored.copy(), dtype=kind).cuda().to(dtype).double()
    with lpq.Artifact(options.codes or options.artifact) as artifact:
        weight, scale, bits, integers = dequantize(torch, artifact, options.module)
    torch.manual_seed(1)
    worst, failed = 0.0, False
    for tokens in [int(text) for text in options.tokens.split(",")]:
        x = torch.randn(tokens, linear.k, device="cuda", dtype=dtype)
        y = torch.full((tokens, linear.n), float("nan"), device="cuda", dtype=dtype)
        linear(x, out=y)
        exact = x.double() @ weight.T
        if bias is not None:
            exact += bias
        # One rounding of the result (2^-11 or 2^-8 of it), and sums in fp32: K 2^-24 of the sizes of what is added, codes and zero
        # points of integers (up to 2^(bits + 2) scales) apart. Kernels of the other layouts round weights to f16 from 17 tokens on
        # (2^-11 of each), and turbomind stores {s, t} with t = -zero s rounded once (2^-11 of up to 2^bits scales).
        half = 2.0**-11 if options.dtype == "f16" else 2.0**-8
        away = weight.abs() + (scale * 2.0 ** (bits + 2) if integers else 0)
        off = torch.zeros_like(weight)
        if layout != "tilus":
            off += weight.abs() * 2.0**-11
        elif tokens > 16:
            # Kernels of 9.0 round weights above 16 tokens, with their scales and zero points in four steps at most.
            off += weight.abs() * 4 * half + scale * 2.0 ** (bits - 24 if integers else -24)
        if layout == "turbomind" and integers:
            off += scale * 2.0 ** (bits - 11)
        bound = exact.abs() * 2 * half + x.double().abs() @ (away * linear.k * 2.0**-24 + off).T + 2.0**-20
        off = ((y.double() - exact).abs() / bound).max().item()
        failed |= not off <= 1
        worst = max(worst, off)
        # The same through a graph, which replays the same bytes.
        graph = torch.cuda.CUDAGraph()
        again = torch.empty_like(y)
        linear(x, out=again)
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            linear(x, out=again)  # this stream's workspace, before recording
            side.synchronize()
            with torch.cuda.graph(graph, stream=side):
                linear(x, out=again)
        again.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(y.view(torch.int16), again.view(torch.int16)):
            print(f"{tokens} tokens: a recorded product differs")
            failed = True
        line = f"{layout} {options.dtype} {tokens} tokens: {off:.3f} of the bound"
        if options.time:
            dense = weight.to(dtype)
            line += f"; {timed(torch, lambda: linear(x, out=y, settled=True)):.1f} us a call from Python, torch dense {timed(torch, lambda: torch.mm(x, dense.T, out=y)):.1f}"
        print(line)
        if tokens == 16:
            print("  " + linear.explain(tokens).strip().replace("\n", "\n  "))
    linear.close()
    context.close()
    print("FAILED" if failed else f"ok, {worst:.3f} of the bound")
    return 1 if failed else 0


def timed(torch, call, times=200):
    for _ in range(20):
        call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / times


if __name__ == "__main__":
    sys.exit(main())
