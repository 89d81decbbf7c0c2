"""Products over packed codes, as torch operations with fakes, so that torch.compile, torch.export and CUDA graphs take them.

A packed weight is one uint8 tensor, a *block*. On the CPU it is plain data (lpq_kernels.h: lpq_cpu_*), which can be a buffer, be saved, and be
moved. On a CUDA device it belongs to where it was packed (_device.py), and to the type of its inputs: `device` and `dtype` of pack_* say so.
Products there run on torch's current stream, allocate their output alone, and never wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_size_t

import torch

from . import _ctypes, _device, _mixture
from ._ctypes import ACTIVATIONS
from ._device import reserve
from ._library import BlockInfo, Codes, Error, Share, check, library, sized
from ._operations import operations
from .artifact import Artifact

__all__ = [
    *("ACTIVATIONS", "describe", "experts", "experts_linear", "linear", "operations", "pack_codes", "pack_expert", "pack_module", "pack_share"),
    *("reserve", "rows", "stack", "stacked"),
]


def _empty(size: int) -> torch.Tensor:
    """`size` bytes that start at a multiple of 64."""
    room = torch.empty(size + 63, dtype=torch.uint8)
    first = -room.data_ptr() % 64
    return room[first : first + size]


def describe(block: torch.Tensor) -> BlockInfo:
    """n, k, bits, group and bias of a block. Raises Error for memory that is none, or cut short."""
    return _ctypes.describe(block) if block.device.type == "cpu" else _device.describe(block)


def _elsewhere(device: torch.device | str | None, dtype: torch.dtype | None) -> tuple[torch.device, torch.dtype] | None:
    """The device and the type of inputs of a block that is not the CPU's; None for one of the CPU's."""
    if device is None or torch.device(device).type == "cpu":
        return None
    if torch.device(device).type != "cuda":
        raise Error("LPQ_ERROR_UNSUPPORTED", f"lpq_kernels runs on the CPU and on CUDA devices, not on {device}")
    if dtype is None:
        raise Error("LPQ_ERROR_ARGUMENT", "a weight on a device is packed for inputs of one type: dtype is missing")
    return torch.device(device), dtype


def pack_module(artifact: Artifact, name: str, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The block of an artifact's module, its bias within. Raises Error for a layout without a product on the device."""
    there = _elsewhere(device, dtype)
    if there is not None:
        return _device.upload(artifact, name, *there)
    size = c_size_t()
    check(library.lpq_cpu_module_bytes(artifact.handle, name.encode(), byref(size)))
    block = _empty(size.value)
    check(library.lpq_cpu_module_pack(artifact.handle, name.encode(), block.data_ptr(), size.value, torch.get_num_threads()))
    return block


def pack_share(
    artifact: Artifact,
    name: str,
    *,
    n: tuple[int, int],
    k: tuple[int, int],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The block of a share of a module: outputs n[0] to n[1] and inputs k[0] to k[1], which are whole groups.

    A share of inputs that does not begin at 0 has no bias: sums of shares have it once. Raises Error for what lies outside the module,
    parts of groups, and inputs of permuted columns; on a device also for parts of blocks of 32 outputs by 128 inputs.
    """
    there = _elsewhere(device, dtype)
    if there is not None:
        return _device.share(artifact, name, n, k, *there)
    share, size = sized(Share), c_size_t()
    share.n, share.n_count, share.k, share.k_count = n[0], n[1] - n[0], k[0], k[1] - k[0]
    check(library.lpq_cpu_share_bytes(artifact.handle, name.encode(), byref(share), byref(size)))
    block = _empty(size.value)
    check(library.lpq_cpu_share_pack(artifact.handle, name.encode(), byref(share), block.data_ptr(), size.value, torch.get_num_threads()))
    return block


def pack_expert(
    artifact: Artifact,
    name: str,
    *,
    n: tuple[int, int],
    k: tuple[int, int],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """pack_share() of a module, or all of it, as stack() takes it on a device."""
    module = artifact.module(name)
    if (n, k) == ((0, module.n), (0, module.k)) and (_elsewhere(device, dtype) is None or not _device.shareable(artifact, name)):
        return pack_module(artifact, name, device=device, dtype=dtype)
    return pack_share(artifact, name, n=n, k=k, device=device, dtype=dtype)


def stack(experts: Sequence[torch.Tensor], *, places: int = 1) -> torch.Tensor:
    """The block of all experts of a projection, for experts_linear(), of a block an expert, all [n, k].

    On a CPU their types may differ. On a device they are of one type, group and kind of zero points, blocks of pack_codes(), pack_share() or
    pack_expert(), and `places` is how many rows of x a token has at most. Raises Error for what does not fit.
    """
    if len(experts) == 0:
        raise Error("LPQ_ERROR_ARGUMENT", "there are no experts")
    if experts[0].device.type != "cpu":
        return _mixture.stack([[block] for block in experts], places)
    sizes = [(info.n, info.k) for info in map(describe, experts)]
    for i, size in enumerate(sizes):
        if size != sizes[0]:
            raise Error("LPQ_ERROR_ARGUMENT", f"expert {i} is {list(size)}, and expert 0 is {list(sizes[0])}")
    made = _empty(sum(block.numel() for block in experts))
    torch.cat(list(experts), out=made)
    return made


def stacked(
    gate: Sequence[torch.Tensor], up: Sequence[torch.Tensor], down: Sequence[torch.Tensor], *, places: int
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """What experts() is to be called with for blocks that do not change: on a device, where experts are alike, one block of gate and up, none, and
    one of down, with room for `places` experts a token. Else the same."""
    return (gate, up, down) if gate[0].device.type == "cpu" else _mixture.stacked(gate, up, down, places)


def pack_codes(
    type: str,
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    group: int = 0,
    zeros: torch.Tensor | None = None,
    zero: float = 0,
    permutation: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    threads: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The block of plain codes: W [N, K] = (value(code) - zero) * scale.

    `type`: u1 to u8, i2 to i8, or a float such as f4e2m1. `codes` uint8 [N, K], raw bit patterns; `scales` and `zeros` [N, G] with
    G = ceil(K / group), or 1 for group 0; `permutation` [K], the column of x of each k; `bias` [N]; `threads` pack it,
    torch's number unless given. On a device codes are packed there, in layout tilus, without a permutation, and scales are f16 or bf16,
    whichever holds them. Raises Error for what does not fit.
    """
    if codes.dim() != 2 or codes.dtype != torch.uint8:
        raise Error("LPQ_ERROR_ARGUMENT", f"codes are {codes.dtype} {list(codes.shape)}, not uint8 [N, K]")
    n, k = codes.shape
    groups = -(-k // group) if group else 1
    made = sized(Codes)
    kept = {"codes": codes.contiguous()}
    shapes = {"scales": (scales, [n, groups]), "zeros": (zeros, [n, groups]), "permutation": (permutation, [k]), "bias": (bias, [n])}
    for name, (tensor, shape) in shapes.items():
        if tensor is None:
            continue
        if list(tensor.shape) != shape:
            raise Error("LPQ_ERROR_ARGUMENT", f"{name} has the shape {list(tensor.shape)}, not {shape}")
        kept[name] = tensor
    there = _elsewhere(device, dtype)
    if there is not None:
        if permutation is not None:
            raise Error("LPQ_ERROR_UNSUPPORTED", "products on a device have no permutation of columns")
        return _device.codes(type, codes, scales, group, zeros, zero, bias, *there)
    for name, tensor in kept.items():
        kept[name] = tensor if name == "codes" else tensor.to(torch.int32 if name == "permutation" else torch.float32).contiguous()
    made.type, made.n, made.k, made.group, made.zero = type.encode(), n, k, group, zero
    for name, tensor in kept.items():
        setattr(made, name, tensor.data_ptr())
    size = c_size_t()
    check(library.lpq_cpu_codes_bytes(byref(made), byref(size)))
    block = _empty(size.value)
    check(library.lpq_cpu_codes_pack(byref(made), block.data_ptr(), size.value, threads or torch.get_num_threads()))
    return block


def linear(x: torch.Tensor, block: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """y [..., N] = x [..., K] W^T + bias, of x's type. Raises RuntimeError, in a sentence, for another K, type or block."""
    made: torch.Tensor = _linear(x, block, n, k)
    return made


def experts_linear(x: torch.Tensor, offsets: torch.Tensor, block: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """y [M, N] of x [M, K], its rows sorted by expert: y[m] = x[m] W_e^T + bias_e for offsets[e] <= m < offsets[e + 1].

    `block`: of stack(). `offsets`: int32 [experts + 1] on the device of x, 0 or more, ascending, at most M. Rows that no expert has are not
    written. Raises RuntimeError for what does not fit; on a device offsets that do not ascend multiply nothing, and nobody is told.
    """
    made: torch.Tensor = _experts_linear(x, offsets, block, n, k)
    return made


def rows(ids: torch.Tensor, block: torch.Tensor, k: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of W, [..., K] of `dtype`, for ids [...] of whole numbers. Raises RuntimeError for a row that there is none of."""
    made: torch.Tensor = _rows(ids, block, k, dtype)
    return made


def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate: Sequence[torch.Tensor],
    up: Sequence[torch.Tensor],
    down: Sequence[torch.Tensor],
    activation: str,
) -> torch.Tensor:
    """y [T, H] = sum over j of weights[t, j] down(act(gate(x)) up(x)) of expert ids[t, j], of x's type.

    x [T, H]; weights and ids [T, J], an id of -1 for none; gate, up and down a block an expert, whose types may differ, or what stacked()
    makes of them. `activation` is one of ACTIVATIONS. Sums over experts are f32, in ascending order of experts. Raises RuntimeError for an
    expert that there is none of; on a device that is none.
    """
    made: torch.Tensor = _experts(x, weights, ids, gate, up, down, activation)
    return made


if operations == "compiled":
    torch.library.impl("lpq_kernels::experts", "cuda")(_mixture.experts)
    torch.library.impl("lpq_kernels::rows", "cuda")(_device.rows)
_linear, _rows, _experts, _experts_linear = (
    getattr(torch.ops.lpq_kernels, name).default for name in ("linear", "rows", "experts", "experts_linear")
)
