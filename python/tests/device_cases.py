"""What test_device.py runs in a process whose library is device_stub.c: each function a case, all of them one JSON."""

import ctypes
import json
import os
import sys
import traceback

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lpq_kernels import Artifact, Error, _device, _mixture, _tilus, ops
from lpq_kernels._library import library

HOST = torch.device("cpu")
HALVES = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
on_device = torch.ops.lpq_kernels.linear_on_device.default
of_experts = torch.ops.lpq_kernels.experts_linear_on_device.default


def count(name: str) -> int:
    return ctypes.c_int.in_dll(library, name).value


def drawn(type: str, n: int, k: int, group: int, zeros: bool, seed: int = 0):
    """Codes, scales that bf16 holds, zero points, and W in f64."""
    draw = torch.Generator().manual_seed(seed)
    bits, groups = int(type[1]), -(-k // group) if group else 1
    codes = torch.randint(0, 1 << bits, (n, k), generator=draw).to(torch.uint8)
    scales = torch.randint(1, 128, (n, groups), generator=draw).float() / 64
    zero = torch.randint(0, 1 << bits, (n, groups), generator=draw).float() if zeros else None
    column = torch.arange(k) // group if group else torch.zeros(k, dtype=torch.long)
    value = codes.long()
    if type[0] == "i":
        value = torch.where(value >> (bits - 1) > 0, value - (1 << bits), value)
    return codes, scales, zero, (value - (zero[:, column] if zeros else 0)).double() * scales.double()[:, column]


def packed(type: str, n: int, k: int, group: int, zeros: bool, dtype: torch.dtype, bias: torch.Tensor | None = None):
    codes, scales, zero, weight = drawn(type, n, k, group, zeros)
    return _device.codes(type, codes, scales, group, zero, 0, bias, HOST, dtype), weight


def near(y: torch.Tensor, exact: torch.Tensor) -> None:
    """The stub sums in double and rounds once, by way of f32: two roundings."""
    bound = exact.abs() * (HALVES[y.dtype] + 2.0**-24) + 2.0**-24
    assert bool(((y.double() - exact).abs() <= bound).all())


def every_type_is_packed_as_the_stub_reads_it():
    types = [f"u{bits}" for bits in range(1, 9)] + [f"i{bits}" for bits in range(2, 9)]
    for i, type in enumerate(types):
        # Neither is a multiple of a block: 32 outputs, 128 inputs.
        n, k, group, dtype = 45, 160 + 32 * (i % 3), (32, 64, 0)[i % 3], (torch.float16, torch.bfloat16)[i % 2]
        block, weight = packed(type, n, k, group, i % 2 == 0 and type[0] == "u", dtype)
        x = torch.randn((3, k), generator=torch.Generator().manual_seed(i)).to(dtype)
        near(on_device(x, block, n, k), x.double() @ weight.T)


def biases_and_shapes():
    bias = torch.arange(40).float()
    block, weight = packed("u4", 40, 128, 64, True, torch.bfloat16, bias)
    for shape in ((128,), (2, 3, 128), (0, 128), (1, 128)):
        x = torch.randn(shape).to(torch.bfloat16)
        y = on_device(x, block, 40, 128)
        assert y.shape == (*shape[:-1], 40) and y.dtype == x.dtype and y.is_contiguous()
        near(y, x.double() @ weight.T + bias.double())
    turned = torch.randn((128, 6)).to(torch.bfloat16).t()  # not contiguous
    near(on_device(turned, block, 40, 128), turned.double() @ weight.T + bias.double())
    apart = torch.randn(129).to(torch.bfloat16)[1:]  # begins at 2 bytes
    near(on_device(apart, block, 40, 128), apart.double() @ weight.T + bias.double())


def negative_and_broken_zero_points_are_f16():
    codes, scales, _, _ = drawn("u4", 32, 128, 64, False)
    zeros = torch.tensor([[-1.5, 7.25]]).expand(32, 2)
    block = _device.codes("u4", codes, scales, 64, zeros, 0, None, HOST, torch.float16)
    x = torch.randn((2, 128)).to(torch.float16)
    weight = (codes.double() - zeros.double().repeat_interleave(64, 1)) * scales.double().repeat_interleave(64, 1)
    near(on_device(x, block, 32, 128), x.double() @ weight.T)


def bytes_are_those_of_lpq_pack():
    with Artifact(os.path.join(os.environ["LPQ_ARTIFACTS"], "tilus")) as artifact:
        for module in list(artifact.modules())[:3]:
            stored = artifact.tensor(f"{module.name}.packed")
            bits = int(module.type[1])
            # Codes by the stub's reading: products by unit vectors in place of x would be slow; a scale of 1 and integers are exact.
            ones = torch.ones((stored.shape[0], 1, 32), dtype=torch.float16)
            block = _device.tilus(f"u{bits}", (module.n, module.k), 0, (stored, ones, None), torch.float16)
            eye = torch.eye(module.k, dtype=torch.float16)[:64]
            codes = torch.zeros((stored.shape[0] * 32, module.k), dtype=torch.uint8)
            codes[: module.n, :64] = on_device(eye, block, module.n, module.k).t().to(torch.uint8)
            own = _tilus.packed(codes[: module.n, :64], bits)
            assert torch.equal(own[:, :1].view(-1, 512 * bits), _first(stored, bits)), module.name


def _first(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """Blocks of the first 128 inputs, those of the last 64 set to 0: chunks 2 and 3 of every lane, by the order of words."""
    words = stored[:, 0].contiguous().view(torch.int32).view(-1, bits, 32, 4).permute(0, 2, 1, 3).reshape(-1, 32, 4 * bits).clone()
    words[:, :, 2 * bits :] = 0
    return words.view(-1, 32, bits, 4).permute(0, 2, 1, 3).contiguous().view(torch.uint8).view(-1, 512 * bits)


def modules_of_artifacts_and_shares():
    with Artifact(os.path.join(os.environ["LPQ_ARTIFACTS"], "tilus")) as artifact:
        name = next(module.name for module in artifact.modules() if module.name.endswith("mlp.down_proj"))
        module = artifact.module(name)
        x = torch.randn((2, module.k)).to(torch.bfloat16)
        whole = on_device(x, _device.upload(artifact, name, HOST, torch.bfloat16), module.n, module.k)
        near(whole, ops.linear(x.float(), ops.pack_module(artifact, name), module.n, module.k).double())
        rows = _device.share(artifact, name, (32, 96), (0, module.k), HOST, torch.bfloat16)
        assert torch.equal(on_device(x, rows, 64, module.k), whole[:, 32:96])
        half = module.k // 2 // 128 * 128
        parts = [(0, half), (half, module.k)]
        blocks = [_device.share(artifact, name, (0, module.n), part, HOST, torch.bfloat16) for part in parts]
        sums = [on_device(x[:, a:b].contiguous(), block, module.n, b - a) for (a, b), block in zip(parts, blocks, strict=True)]
        # Each part is rounded to bf16 once, and so is the whole.
        apart = (sums[0].double() + sums[1].double() - whole.double()).abs()
        assert bool((apart <= 2.0**-8 * (sums[0].abs() + sums[1].abs() + whole.abs()).double() + 1e-6).all())
        refused(lambda: _device.share(artifact, name, (16, 96), (0, module.k), HOST, torch.bfloat16), "outputs 16 to 96 is no whole number of blocks of 32")
        refused(lambda: _device.share(artifact, name, (0, 32), (64, 256), HOST, torch.bfloat16), "inputs 64 to 256 is no whole number of blocks of 128")


def refused(call, sentence: str) -> None:
    try:
        call()
    except RuntimeError as error:
        assert sentence in str(error), str(error)
        assert "\n" not in str(error)
    else:
        raise AssertionError(f"not refused: {sentence}")


def arguments_are_refused_with_a_sentence():
    block, _ = packed("u4", 32, 128, 64, False, torch.bfloat16)
    x = torch.zeros((1, 128), dtype=torch.bfloat16)
    refused(lambda: on_device(x, block.clone(), 32, 128), "was not packed for this device: pack it there, it cannot be moved or copied")
    refused(lambda: on_device(x, block, 32, 64), "the packed weight is [32, 128], not [32, 64]")
    refused(lambda: on_device(x[:, :64], block, 32, 128), "x has the shape [1, 64], and the packed weight is [32, 128]")
    refused(lambda: on_device(x.half(), block, 32, 128), "x is float16, and the weight was packed for bfloat16")
    refused(lambda: on_device(x.float(), block, 32, 128), "x is float32, and the weight was packed for bfloat16")
    refused(lambda: on_device(x.double(), block, 32, 128), "x is no float32, float16 or bfloat16")
    refused(lambda: packed("u4", 32, 128, 64, False, torch.float32), "products on a device have float16 or bfloat16 inputs, not torch.float32")
    codes, scales, _, _ = drawn("u4", 32, 256, 256, False)
    refused(lambda: _device.codes("u4", codes, scales, 256, None, 0, None, HOST, torch.float16), "groups of 32, 64 or 128, or one a row, not of 256")
    refused(lambda: ops.pack_codes("u4", codes, scales, group=256, device="cuda"), "dtype is missing")
    refused(lambda: ops.pack_codes("u4", codes, scales, group=256, device="xpu", dtype=torch.float16), "not on xpu")
    order = torch.arange(256)
    refused(lambda: ops.pack_codes("u4", codes, scales, group=256, permutation=order, device="cuda", dtype=torch.float16), "no permutation of columns")
    refused(lambda: _device.describe(block.clone()), "it cannot be moved or copied")
    info = _device.describe(block)
    assert (info.n, info.k, info.bits, info.group, info.bias) == (32, 128, 4, 64, 0)
    refused(lambda: ops.reserve(0), "tokens is 0, not 1 or more")


def workspaces_are_made_before_products_and_grow_outside_graphs():
    block, weight = packed("u4", 32, 128, 64, False, torch.bfloat16)
    inits = count("stub_inits")
    assert inits >= _device.STREAMS
    x = torch.randn((_device.TOKENS, 128)).to(torch.bfloat16)
    for rows in (1, 7, _device.TOKENS):
        on_device(x[:rows], block, 32, 128)
    assert count("stub_inits") == inits  # no product made one
    more = torch.cat([x, x[:1]])
    near(on_device(more, block, 32, 128)[-2:], more[-2:].double() @ weight.T)
    assert count("stub_inits") == inits + 1
    on_device(more, block, 32, 128)
    assert count("stub_inits") == inits + 1
    ops.reserve(5000)
    packed("u4", 32, 128, 64, False, torch.bfloat16)
    assert count("stub_inits") == inits + 1 + _device.STREAMS
    on_device(torch.cat([x, x, x[:900]]), block, 32, 128)
    assert count("stub_inits") == inits + 1 + _device.STREAMS


def a_weight_ends_with_its_memory():
    destroyed = count("stub_destroyed")
    block, _ = packed("u4", 32, 128, 64, False, torch.bfloat16)
    kept, address, of_the_same = torch.nn.Parameter(block, requires_grad=False), block.data_ptr(), len(_device._weights)
    del block
    assert count("stub_destroyed") == destroyed and address in _device._weights
    on_device(torch.zeros((1, 128), dtype=torch.bfloat16), kept, 32, 128)
    del kept
    assert count("stub_destroyed") == destroyed + 1 and len(_device._weights) == of_the_same - 1
    memory = torch.empty(1 << 16, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 16 :]
    empty = torch.empty
    try:
        torch.empty = lambda size, **said: memory[:size] if isinstance(size, int) else empty(size, **said)
        packed("u4", 32, 128, 64, False, torch.bfloat16)
        block, weight = packed("u3", 32, 128, 64, False, torch.bfloat16)  # in the place of the other
    finally:
        torch.empty = empty
    assert count("stub_destroyed") == destroyed + 2
    x = torch.randn((1, 128)).to(torch.bfloat16)
    near(on_device(x, block, 32, 128), x.double() @ weight.T)


def fakes_have_the_device_and_the_type_of_x():
    with FakeTensorMode():
        for device in ("cuda", "cpu", "meta"):
            x = torch.empty((5, 7, 64), dtype=torch.bfloat16, device=device)
            block = torch.empty(4096, dtype=torch.uint8, device=device)
            for operation in (torch.ops.lpq_kernels.linear, torch.ops.lpq_kernels.linear_on_device):
                y = operation(x, block, 96, 64)
                assert (y.shape, y.dtype, y.device.type) == ((5, 7, 96), torch.bfloat16, device)
            for operation in (torch.ops.lpq_kernels.experts_linear, torch.ops.lpq_kernels.experts_linear_on_device):
                y = operation(x.view(35, 64), torch.empty(9, dtype=torch.int32, device=device), block, 96, 64)
                assert (y.shape, y.dtype, y.device.type) == ((35, 96), torch.bfloat16, device)
            ids, share = torch.zeros((35, 2), dtype=torch.int64, device=device), torch.ones((35, 2), device=device)
            y = torch.ops.lpq_kernels.mixture_on_device(x.view(35, 64), share, ids.int(), block, block, 0)
            assert (y.shape, y.dtype, y.device.type) == ((35, 64), torch.bfloat16, device)
            for up in ([block], []):
                y = torch.ops.lpq_kernels.experts(x.view(35, 64), share, ids, [block], up, [block], "silu")
                assert (y.shape, y.dtype, y.device.type) == ((35, 64), torch.bfloat16, device)


def torch_compile_takes_products_into_one_graph():
    block, weight = packed("u4", 64, 64, 64, False, torch.bfloat16)

    def layer(x, block):
        y = torch.relu(on_device(x, block, 64, 64)) + 1
        return on_device(y, block, 64, 64)

    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
        for rows in (2, 5, 9):
            x = torch.randn((rows, 64)).to(torch.bfloat16)
            assert torch.equal(compiled(x, block), layer(x, block))


def every_device_has_its_product():
    for name in ("linear", "experts_linear", "experts", "rows"):
        for key in ("CPU", "CUDA"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"lpq_kernels::{name}", key), (name, key)
    ids, block = torch.tensor([1]), torch.empty(16, dtype=torch.uint8)
    refused(lambda: _device.rows(ids, block, 64, torch.float16), "rows of a packed weight are read on a CPU, not on a device")
    assert not on_device._schema.is_mutable  # its output is new, so that compilers may move calls


def experts_are_those_of_the_processor():
    """Beside ops.experts() in f32 on the CPU; blocks of both are of the same codes."""
    hidden, inner, count_of = 64, 96, 4
    sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    there, here = {}, {}
    for part, (n, k) in sizes.items():
        cases = [drawn("u4", n, k, 32, True, seed=100 * e + n) for e in range(count_of)]
        # Small weights: sums stay of the inputs' size.
        there[part] = [_device.codes("u4", codes, scales / 64, 32, zeros, 0, None, HOST, torch.bfloat16) for codes, scales, zeros, _ in cases]
        here[part] = [ops.pack_codes("u4", codes, scales / 64, group=32, zeros=zeros) for codes, scales, zeros, _ in cases]
    draw = torch.Generator().manual_seed(3)
    x, share = torch.randn((5, hidden), generator=draw).to(torch.bfloat16), torch.rand((5, 2), generator=draw)
    ids = torch.tensor([[0, 1], [3, 2], [1, -1], [-1, -1], [2, 0]])
    for activation in ops.ACTIVATIONS:
        y = _mixture.experts(x, share, ids, there["gate"], there["up"], there["down"], activation)
        exact = ops.experts(x, share, ids, here["gate"], here["up"], here["down"], activation)
        # Both round the same four results to bf16 (two opened, one inner, one lowered): f32 sums of another order may turn one of each.
        size = exact.float().abs().amax()
        assert (y.dtype, y.shape) == (x.dtype, x.shape) and bool(((y.float() - exact.float()).abs() <= 8 * 2.0**-8 * size).all()), activation
        assert not y[3].any()
    refused(lambda: _mixture.experts(x, share, ids, there["gate"], there["up"], there["down"], "tanh"), "'tanh' is no activation")


def drawn_experts(count_of: int, sizes: dict[str, tuple[int, int]], types: tuple[str, ...] = ("u4",), seed: int = 100):
    """Blocks of each part for the device and the CPU, of the same codes."""
    there, here = {}, {}
    for part, (n, k) in sizes.items():
        cases = [(types[e % len(types)], drawn(types[e % len(types)], n, k, 32, True, seed=seed * e + n)) for e in range(count_of)]
        # Small weights: sums stay of the inputs' size.
        there[part] = [_device.codes(type, codes, scales / 64, 32, zeros, 0, None, HOST, torch.bfloat16) for type, (codes, scales, zeros, _) in cases]
        here[part] = [ops.pack_codes(type, codes, scales / 64, group=32, zeros=zeros) for type, (codes, scales, zeros, _) in cases]
    return there, here


def rows_of_experts_are_one_launch():
    """Beside W in f64: experts of none and of some rows, rows that no expert has, biases, outputs and inputs that are no whole blocks."""
    for type, group, dtype in (("u4", 64, torch.bfloat16), ("i3", 32, torch.float16), ("u8", 0, torch.bfloat16)):
        n, k, bias = 45, 192, torch.arange(45).float()
        cases = [drawn(type, n, k, group, type[0] == "u", seed=e) for e in range(4)]
        blocks = [_device.codes(type, codes, scales, group, zeros, 0, bias + e, HOST, dtype) for e, (codes, scales, zeros, _) in enumerate(cases)]
        block = _mixture.stack([[each] for each in blocks])
        del blocks  # the whole is a copy
        offsets, before = torch.tensor([1, 4, 4, 5, 9], dtype=torch.int32), count("stub_grouped")
        x = torch.randn((10, k), generator=torch.Generator().manual_seed(1)).to(dtype)
        y = of_experts(x, offsets, block, n, k)
        assert count("stub_grouped") == before + 1 and y.shape == (10, n) and y.dtype == dtype
        for e, (first, end) in enumerate(zip(offsets, offsets[1:])):
            near(y[first:end], x[first:end].double() @ cases[e][3].T + (bias + e).double())
        assert bool(y[:1].isnan().all() and y[9:].isnan().all())
        assert of_experts(x[:0], torch.zeros(5, dtype=torch.int32), block, n, k).shape == (0, n)


def gate_and_up_are_one_product():
    """Beside f64: gate and up of 45 outputs, which are no whole blocks, with biases; words, scales and zero points of several sizes."""
    for type, group, zeros, dtype in (("u4", 32, True, torch.bfloat16), ("i3", 64, False, torch.float16), ("u6", 0, True, torch.float16)):
        inner, hidden, bias = 45, 192, torch.arange(45).float() / 8 - 2
        cases = [[drawn(type, inner, hidden, group, zeros, seed=2 * e + part) for part in range(2)] for e in range(3)]
        blocks = [
            [
                _device.codes(type, codes, scales / 64, group, points, 0, bias * (part + 1), HOST, dtype)
                for part, (codes, scales, points, _) in enumerate(each)
            ]
            for each in cases
        ]
        # Down is the identity: y is what stands between the products.
        lowers = [_device.codes("u1", torch.eye(inner, dtype=torch.uint8), torch.ones((inner, 1)), 0, None, 0, None, HOST, dtype)] * 3
        before = count("stub_interleaved")
        (both,), up, (down,) = _mixture.stacked([each[0] for each in blocks], [each[1] for each in blocks], lowers, 1)
        assert count("stub_interleaved") == before + 1 and not up and (_device.of(both).n, _device.of(both).gated) == (inner, True)
        x, ids = torch.randn((6, hidden), generator=torch.Generator().manual_seed(2)).to(dtype), torch.tensor([[0], [2], [1], [2], [0], [-1]])
        y = torch.ops.lpq_kernels.mixture_on_device(x, torch.ones(6, 1), (ids & 0x7FFFFFFF).clamp_(max=3).int(), both, down, 0)
        for row, e in enumerate(ids.flatten().tolist()[:5]):
            opens, raises = (x[row].double() @ cases[e][part][3].T / 64 + (bias * (part + 1)).double() for part in range(2))
            near(y[row], opens * torch.sigmoid(opens) * raises)
        assert not y[5].any()


def experts_that_are_alike_are_one_call():
    """Beside the CPU's, and beside every expert of every token: the same, whatever the ids; no more launches for more experts."""
    hidden, inner = 64, 96
    sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    draw = torch.Generator().manual_seed(4)
    for experts, places, tokens in ((4, 2, 5), (7, 3, 12), (3, 1, 1), (4, 2, 0)):
        there, here = drawn_experts(experts, sizes)
        whole = _mixture.stacked(there["gate"], there["up"], there["down"], places)
        assert [len(part) for part in whole] == [1, 0, 1]
        x, share = torch.randn((tokens, hidden), generator=draw).to(torch.bfloat16), torch.rand((tokens, places), generator=draw)
        chosen = torch.randint(-1, experts, (tokens, places), generator=draw)
        for ids, activation in ((chosen, "silu"), (chosen, "gelu"), (chosen, "gelu_tanh"), (torch.full((tokens, places), -1), "silu")):
            for kind in (torch.int64, torch.int32):
                mixtures, plain = count("stub_mixtures"), count("stub_gemms")
                y = _mixture.experts(x, share, ids.to(kind), *whole, activation)
                assert count("stub_mixtures") == mixtures + bool(tokens) and count("stub_gemms") == plain
                exact = ops.experts(x, share, ids, here["gate"], here["up"], here["down"], activation)
                # As in experts_are_those_of_the_processor.
                size = exact.float().abs().amax() if tokens else 0
                assert y.shape == x.shape and bool(((y.float() - exact.float()).abs() <= 8 * 2.0**-8 * size).all())
        if tokens:
            other = _mixture.experts(x, share, torch.full_like(ids, experts + 3), *whole, "silu")  # one that there is none of
            assert not other.any()
            ids = torch.randint(0, experts, (tokens, places), generator=draw)
            slow = _mixture.experts(x, share, ids, there["gate"], there["up"], there["down"], "silu")
            fast = _mixture.experts(x, share, ids, *whole, "silu")
            # Rounded alike but for gate and up, which only the slow way rounds: as in experts_are_those_of_the_processor.
            assert bool(((fast.float() - slow.float()).abs() <= 8 * 2.0**-8 * slow.float().abs().amax()).all())
            assert torch.equal(fast, _mixture.experts(x, share, ids, *whole, "silu"))


def experts_that_differ_stay_apart():
    hidden, inner = 64, 96
    sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    there, here = drawn_experts(4, sizes, ("u4", "u3"))
    whole = _mixture.stacked(there["gate"], there["up"], there["down"], 2)
    assert [len(part) for part in whole] == [4, 4, 4]
    draw = torch.Generator().manual_seed(5)
    x, share, ids = torch.randn((3, hidden), generator=draw).to(torch.bfloat16), torch.rand((3, 2), generator=draw), torch.tensor([[0, 1], [2, 3], [-1, 1]])
    y, exact = _mixture.experts(x, share, ids, *whole, "gelu"), ops.experts(x, share, ids, here["gate"], here["up"], here["down"], "gelu")
    assert bool(((y.float() - exact.float()).abs() <= 8 * 2.0**-8 * exact.float().abs().amax()).all())
    refused(lambda: _mixture.stack([[block] for block in there["gate"]]), "experts 0 and 1 differ in their types")
    alike, _ = drawn_experts(2, {"a": (64, 64), "b": (64, 96), "c": (64, 64)})
    refused(lambda: _mixture.stack([[alike["a"][0]], [alike["b"][0]]]), "experts 0 and 1 differ in their sizes")
    codes, scales, zeros, _ = drawn("u4", 64, 64, 32, True)
    for other, what in (
        (_device.codes("u4", codes, scales[:, :1], 64, zeros[:, :1], 0, None, HOST, torch.bfloat16), "their groups"),
        (_device.codes("u4", codes, scales, 32, None, 8, None, HOST, torch.bfloat16), "their zero points"),
        (_device.codes("u4", codes, scales, 32, zeros, 0, torch.zeros(64), HOST, torch.bfloat16), "their biases"),
        (_device.codes("u4", codes, scales, 32, zeros, 0, None, HOST, torch.float16), "the type of their inputs"),
    ):
        refused(lambda other=other: _mixture.stack([[alike["a"][0]], [other]]), f"differ in {what}")
    with Artifact(os.path.join(os.environ["LPQ_ARTIFACTS"], "tilus")) as artifact:
        uploaded = _device.upload(artifact, "model.layers.0.mlp.down_proj", HOST, torch.bfloat16)
    refused(lambda: _mixture.stack([[uploaded]]), "expert 0 is not of layout tilus, which one launch multiplies")


def experts_of_an_artifact_are_one_launch():
    """Layers as if they were experts, beside each one's own product."""
    with Artifact(os.path.join(os.environ["LPQ_ARTIFACTS"], "tilus")) as artifact:
        names = sorted(module.name for module in artifact.modules() if module.name.endswith("mlp.down_proj"))
        n, k = artifact.module(names[0]).n, artifact.module(names[0]).k
        elsewhere, ops._elsewhere = ops._elsewhere, lambda device, dtype: (HOST, dtype)
        try:
            blocks = [ops.pack_expert(artifact, name, n=(0, n), k=(0, k), device="cuda", dtype=torch.bfloat16) for name in names]
        finally:
            ops._elsewhere = elsewhere
    block, offsets = _mixture.stack([[each] for each in blocks]), torch.arange(len(names) + 1, dtype=torch.int32) * 2
    x = torch.randn((2 * len(names), k), generator=torch.Generator().manual_seed(6)).to(torch.bfloat16)
    y = of_experts(x, offsets, block, n, k)
    for e, each in enumerate(blocks):
        assert torch.equal(y[2 * e : 2 * e + 2], on_device(x[2 * e : 2 * e + 2], each, n, k))


def arguments_of_experts_are_refused_with_a_sentence():
    there, _ = drawn_experts(3, {"a": (32, 64)})
    block, x, offsets = _mixture.stack([[each] for each in there["a"]]), torch.zeros((4, 64), dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int32)
    refused(lambda: of_experts(x, offsets, block.clone(), 32, 64), "was not packed for this device")
    refused(lambda: of_experts(x, offsets, there["a"][0], 32, 64), "the packed weight is not of experts: linear multiplies by it")
    refused(lambda: on_device(x, block, 32, 64), "the packed weight is of experts, whose rows experts_linear takes")
    refused(lambda: of_experts(x, offsets, block, 32, 32), "the packed weight is [32, 64], not [32, 32]")
    refused(lambda: of_experts(x[0], offsets, block, 32, 64), "x has the shape [64], not [rows of all experts, K]")
    refused(lambda: of_experts(x, offsets.long(), block, 32, 64), "offsets are no dense int32 of one dimension")
    refused(lambda: of_experts(x, torch.zeros(8, dtype=torch.int32)[::2], block, 32, 64), "offsets are no dense int32 of one dimension")
    refused(lambda: of_experts(x, offsets[:3], block, 32, 64), "offsets have the shape [3], and 3 experts have [4]")
    refused(lambda: of_experts(x.half(), offsets, block, 32, 64), "x is float16, and the weight was packed for bfloat16")
    refused(lambda: ops.stack([]), "there are no experts")
    there, _ = drawn_experts(3, {"gate": (32, 64), "up": (32, 64), "down": (64, 32)})
    (both,), _, (down,) = _mixture.stacked(there["gate"], there["up"], there["down"], 2)
    mixture, share, ids = torch.ops.lpq_kernels.mixture_on_device.default, torch.ones((4, 2)), torch.zeros((4, 2), dtype=torch.int32)
    refused(lambda: mixture(x[:, :32], share, ids, both, down, 0), "x has the shape [4, 32], and the experts take 64 inputs")
    refused(lambda: mixture(x, share, ids[:3], both, down, 0), "not [T, H] and twice [T, J]")
    refused(lambda: mixture(x, share, ids.long(), both, down, 0), "ids are no int32, or weights no float32")
    refused(lambda: mixture(x.half(), share, ids, both, down, 0), "x is float16, and the weight was packed for bfloat16")
    refused(lambda: mixture(x, share, ids, down, both, 0), "x has the shape [4, 64], and the experts take 32 inputs")
    refused(lambda: mixture(x, share, ids, both, both, 0), "the mixture's weights do not fit")
    refused(lambda: mixture(x, share, ids, block, down, 0), "the mixture's weights do not fit")
    refused(lambda: of_experts(x, offsets, both, 32, 64), "the weight is gated")


def room_for_experts_is_made_before():
    """For so many rows as tokens have experts, in a graph, too."""
    there, _ = drawn_experts(3, {"a": (32, 64)})
    block = _mixture.stack([[each] for each in there["a"]], places=4)
    inits, rows = count("stub_inits"), 4 * _device._tokens
    of_experts(torch.zeros((rows, 64), dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int32), block, 32, 64)
    assert count("stub_inits") == inits
    there, _ = drawn_experts(2, {"gate": (32, 64), "up": (32, 64), "down": (64, 32)})
    whole = _mixture.stacked(there["gate"], there["up"], there["down"], 5)
    inits, tokens = count("stub_inits"), _device._tokens
    share, ids = torch.ones((tokens, 5)), torch.full((tokens, 5), -1)
    assert not _mixture.experts(torch.ones((tokens, 64), dtype=torch.bfloat16), share, ids, *whole, "silu").any()
    assert count("stub_inits") == inits
    more = torch.ones((tokens + 1, 64), dtype=torch.bfloat16)
    assert not _mixture.experts(more, torch.ones((tokens + 1, 5)), torch.full((tokens + 1, 5), -1), *whole, "silu").any()
    assert count("stub_inits") == inits + 1


def torch_compile_takes_experts_into_one_graph():
    there, _ = drawn_experts(3, {"a": (64, 64)})
    block = _mixture.stack([[each] for each in there["a"]])

    def layer(x, offsets, block):
        return of_experts(torch.relu(of_experts(x, offsets, block, 64, 64)) + 1, offsets, block, 64, 64)

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 8):
        x, offsets = torch.randn((rows, 64)).to(torch.bfloat16), torch.tensor([0, 1, 1, rows], dtype=torch.int32)
        assert torch.equal(compiled(x, offsets, block), layer(x, offsets, block))


CASES = [case for name, case in list(globals().items()) if callable(case) and getattr(case, "__module__", "") == "__main__" and case.__code__.co_argcount == 0]


def main() -> None:
    torch.set_num_threads(2)
    told = {}
    for case in CASES:
        try:
            case()
            told[case.__name__] = None
        except BaseException:
            told[case.__name__] = traceback.format_exc()[-3000:]
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
