"""Products over plain codes of every type, beside sums in fp64 of weights that are decoded here from the formats' definitions."""

import itertools
import os
import subprocess
import sys

import pytest
import torch

import lpq_kernels as lpq
from lpq_kernels import ops

INTEGERS = [f"u{bits}" for bits in range(1, 9)] + [f"i{bits}" for bits in range(2, 9)]
FLOATS = [f"f{1 + e + m}e{e}m{m}" for e, m in itertools.product(range(1, 7), range(1, 7)) if 3 <= 1 + e + m <= 8]
ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def decoded(type: str, codes: torch.Tensor) -> torch.Tensor:
    """Numbers of codes in f64; floats have subnormals and no infinities here."""
    bits, code = int(type[1]), codes.long()
    if type[0] != "f":
        return (torch.where(code >> (bits - 1) > 0, code - (1 << bits), code) if type[0] == "i" else code).double()
    exponent, mantissa = int(type[3]), int(type[5])
    bias = (1 << (exponent - 1)) - 1 if exponent > 1 else 0
    power, fraction = code >> mantissa & ((1 << exponent) - 1), code & ((1 << mantissa) - 1)
    size = torch.where(power > 0, fraction + (1 << mantissa), fraction).double() * torch.exp2((power.clamp(min=1) - bias - mantissa).double())
    return torch.where(code >> (bits - 1) > 0, -size, size)


def case(type: str, n: int, k: int, group: int, zeros: bool, seed: int = 0):
    """Codes, scales, zero points, W in f64, and the sizes of what a weight is a sum of."""
    draw = torch.Generator().manual_seed(seed)
    bits, groups = int(type[1]), -(-k // group) if group else 1
    codes = torch.randint(0, 1 << bits, (n, k), generator=draw).to(torch.uint8)
    if type == "f8e4m3":
        codes[codes % 128 == 127] = 0  # NaN
    if type == "f8e5m2":
        codes[codes % 128 >= 124] = 0  # infinity and NaN
    scales = torch.rand((n, groups), generator=draw) + 0.5
    zero = torch.randint(0, 1 << bits, (n, groups), generator=draw).float() if zeros else None
    column = torch.arange(k) // group if group else torch.zeros(k, dtype=torch.long)
    value, scale = decoded(type, codes), scales.double()[:, column]
    middle = zero.double()[:, column] if zeros else torch.zeros(())
    return codes, scales, zero, (value - middle) * scale, (value.abs() + middle) * scale


def compare(layer: lpq.Linear, weight, sizes, x, bias=None) -> None:
    """One rounding of the output, and K + 4 roundings in f32 (a chain over each group, its scale, its shift made of two numbers, the
    bias) of at most the sizes of all that is added."""
    exact = x.double() @ weight.T + (0 if bias is None else bias.double())
    added = x.double().abs() @ sizes.T + (0 if bias is None else bias.double().abs())
    bound = exact.abs() * ROUNDING[x.dtype] + added * (2 * weight.shape[1] + 8) * 2.0**-24 * (1 + ROUNDING[x.dtype]) + 2.0**-24
    off = (layer(x).double() - exact).abs()
    assert bool((off <= bound).all()), f"{(off / bound).max().item()} of the bound"


@pytest.mark.parametrize("type", INTEGERS + FLOATS)
def test_every_type(type):
    for group, zeros in ((32, False), (64, type[0] != "f"), (0, False)):
        codes, scales, zero, weight, sizes = case(type, 45, 200, group, zeros)
        layer = lpq.Linear(ops.pack_codes(type, codes, scales, group=group, zeros=zero))
        for rows, dtype in ((1, torch.float32), (2, torch.float16), (7, torch.bfloat16), (67, torch.float32)):
            x = torch.randn((rows, 200), generator=torch.Generator().manual_seed(rows)).to(dtype)
            if type not in ("f7e5m1", "f8e5m2", "f8e6m1") or dtype != torch.float16:  # whose products pass f16's range
                compare(layer, weight, sizes, x)


def test_rows_are_the_weights_rounded_once():
    codes, scales, zero, weight, sizes = case("u5", 70, 160, 32, True)
    table = lpq.Embedding(ops.pack_codes("u5", codes, scales, group=32, zeros=zero))
    ids = torch.tensor([[3, 69], [0, 3]])
    got = table(ids)
    assert got.shape == (2, 2, 160)
    # The shift is -zero * scale, rounded once; then one fma.
    assert bool(((got.double() - weight[ids]).abs() <= sizes[ids] * 2.0**-22).all())


def test_permutation_and_bias():
    codes, scales, _, weight, sizes = case("i4", 64, 128, 64, False)
    order, bias = torch.randperm(128, generator=torch.Generator().manual_seed(5)), torch.randn(64)
    layer = lpq.Linear(ops.pack_codes("i4", codes, scales, group=64, permutation=order, bias=bias))
    turned = torch.empty_like(weight)
    turned[:, order] = weight
    sizes = torch.empty_like(sizes).index_copy_(1, order, sizes)
    compare(layer, turned, sizes, torch.randn(5, 128), bias)


BYTES = """
import hashlib, torch, sys
sys.path.insert(0, sys.argv[1])
from test_products import case
import lpq_kernels as lpq
torch.set_num_threads(int(sys.argv[2]))
running = hashlib.sha256()
types = ("u1", "i3", "u4", "u5", "i6", "u7", "i8", "f4e2m1", "f6e3m2", "f7e2m4", "f8e4m3")
for type, group in [(type, 64) for type in types] + [("u4", 0), ("f8e6m1", 0)]:
    codes, scales, zero, *_ = case(type, 100, 300, group, type[0] != "f")
    layer = lpq.Linear(lpq.pack_codes(type, codes, scales, group=group, zeros=zero))
    for rows in (1, 3, 70):
        running.update(layer(torch.randn((rows, 300), generator=torch.Generator().manual_seed(rows))).numpy().tobytes())
print(running.hexdigest())
"""


def test_instruction_sets_and_threads_give_the_same_bytes():
    def ran(isa: str, threads: int) -> str:
        here = os.path.dirname(__file__)
        told = subprocess.run([sys.executable, "-c", BYTES, here, str(threads)], env={**os.environ, "LPQ_ISA": isa}, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        return told.stdout

    wanted = ran("generic", 1)
    assert all(ran(isa, threads) == wanted for isa, threads in (("avx2", 1), ("avx512", 2), ("avx512bf16", 2)))  # the last: all there is


def test_torch_compile_and_the_fake():
    codes, scales, *_ = case("u3", 40, 96, 32, False)
    layer = lpq.Linear(ops.pack_codes("u3", codes, scales, group=32))
    x = torch.randn(2, 3, 96)
    torch.library.opcheck(torch.ops.lpq_kernels.linear, (x, layer.block, 40, 96))
    torch.library.opcheck(torch.ops.lpq_kernels.rows, (torch.tensor([1, 2]), layer.block, 96, torch.float32))
    # "eager": the graph is captured whole, without a C++ compiler.
    compiled = torch.compile(lambda each: layer(each) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), layer(x) * 2)


def experts(types: tuple[str, ...], hidden: int, inner: int):
    """Blocks of gate, up and down of an expert a type, and their weights in f64."""
    blocks, weights = [[], [], []], []
    for seed, type in enumerate(types):
        made = []
        for part, (n, k) in enumerate(((inner, hidden), (inner, hidden), (hidden, inner))):
            codes, scales, _, weight, _ = case(type, n, k, 32, False, seed * 3 + part)
            blocks[part].append(ops.pack_codes(type, codes, scales / 64, group=32))
            made.append(weight / 64)
        weights.append(made)
    return blocks, weights


@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_rows_of_experts_in_one_call(dtype):
    types, n, k = ("u4", "i3", "f6e3m2", "u8"), 45, 160
    cases = [case(type, n, k, 32, type[0] == "u", seed) for seed, type in enumerate(types)]
    block = ops.stack([ops.pack_codes(type, codes, scales, group=32, zeros=zero) for type, (codes, scales, zero, *_) in zip(types, cases, strict=True)])
    offsets = torch.tensor([0, 3, 3, 4, 9], dtype=torch.int32)
    x = torch.randn((9, k), generator=torch.Generator().manual_seed(8)).to(dtype)
    y = ops.experts_linear(x, offsets, block, n, k)
    assert y.shape == (9, n) and y.dtype == dtype
    for (*_, weight, sizes), first, end in zip(cases, offsets, offsets[1:]):
        compare(lambda rows, at=slice(first, end): y[at], weight, sizes, x[first:end])
    torch.library.opcheck(torch.ops.lpq_kernels.experts_linear, (x, offsets, block, n, k), test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(RuntimeError, match=r"offsets\[4\] is 10: they are to ascend from 0 or more to at most 9"):
        ops.experts_linear(x, torch.tensor([0, 3, 3, 4, 10], dtype=torch.int32), block, n, k)
    with pytest.raises(lpq.Error, match=r"expert 1 is \[45, 32\], and expert 0 is \[45, 160\]"):
        ops.stack([ops.pack_codes("u4", torch.zeros((45, size), dtype=torch.uint8), torch.ones(45, 1)) for size in (160, 32)])


@pytest.mark.parametrize("activation", list(ops.ACTIVATIONS))
def test_experts_are_those_that_tokens_chose(activation):
    blocks, weights = experts(("i3", "u4", "f6e3m2", "i8"), 64, 96)
    draw = torch.Generator().manual_seed(9)
    x, share = torch.randn((7, 64), generator=draw) / 8, torch.rand((7, 2), generator=draw)
    ids = torch.tensor([[0, 1], [1, 0], [3, -1], [-1, -1], [0, 3], [1, 3], [3, 1]])  # expert 2 by none
    wanted = torch.zeros((7, 64), dtype=torch.float64)
    for token, place in itertools.product(range(7), range(2)):
        if (expert := int(ids[token, place])) < 0:
            continue
        gate, up, down = weights[expert]
        row = x[token].double()
        inner = ops.ACTIVATIONS[activation](gate @ row) * (up @ row)
        wanted[token] += share[token, place].double() * (down @ inner)
    got = ops.experts(x, share, ids, *blocks, activation)
    # Chains of 64 and 96 products, a few roundings of an activation: 2^-24 of each, of sums whose terms are some ten times their result.
    assert torch.allclose(got.double(), wanted, rtol=0, atol=10 * 200 * 2.0**-24 * float(wanted.abs().max()))
    assert bool((got[3] == 0).all())
    torch.library.opcheck(torch.ops.lpq_kernels.experts, (x, share, ids, *blocks, activation))
    with pytest.raises(RuntimeError, match="expert 4 is asked for, and there are 4"):
        ops.experts(x[:1], share[:1], torch.tensor([[4, 0]]), *blocks, activation)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"type": "u9"}, "'u9' is no quantized type"),
        ({"group": 48}, "multiple of 32"),
        ({"scales": torch.ones(3, 1)}, r"scales has the shape \[3, 1\]"),
        ({"codes": torch.full((8, 64), 16, dtype=torch.uint8)}, "code 16 of output 0 is beyond 4 bits"),
        ({"permutation": torch.full((64,), 64)}, "a column that x does not have"),
        ({"type": "f4e2m1", "zero": 1.0}, "no zero points"),
    ],
)
def test_bad_codes_end_in_a_sentence(change, sentence):
    given = {"type": "u4", "codes": torch.zeros((8, 64), dtype=torch.uint8), "scales": torch.ones(8, 1), **change}
    if "group" in change:
        given["scales"] = torch.ones(8, 2)
    with pytest.raises(lpq.Error, match=sentence):
        ops.pack_codes(**given)


def test_bad_blocks_and_inputs_end_in_a_sentence():
    block = ops.pack_codes("u4", torch.zeros((8, 64), dtype=torch.uint8), torch.ones(8, 1))
    with pytest.raises(lpq.Error, match="its head says"):
        lpq.Linear(block[:-1])
    with pytest.raises(lpq.Error, match="no packed weight"):
        lpq.Linear(torch.zeros_like(block))
    with pytest.raises(lpq.Error, match="multiple of 64"):
        lpq.Linear(block[8:])
    broken = block.clone()
    broken[8] = 9
    with pytest.raises(lpq.Error, match="9 bits, not 1 to 8"):
        lpq.Linear(broken)
    layer = lpq.Linear(block)
    with pytest.raises(RuntimeError, match=r"x has the shape \[2, 32\]"):
        layer(torch.zeros(2, 32))
    with pytest.raises(RuntimeError, match="x is no float32, float16 or bfloat16"):
        layer(torch.zeros(2, 64, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="row 8 is asked for"):
        lpq.Embedding(block)(torch.tensor([8]))
