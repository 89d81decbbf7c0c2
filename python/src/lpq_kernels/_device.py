"""Packed weights on a CUDA device: lpq_kernels.h's weights, found by their block's address (extension/device.cpp).

A block is the uint8 tensor that holds all of a weight's device memory. It has no header that the host could read, so it must stay where it was
packed: a copy is no weight. A weight ends with its block's memory.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, replace

import torch

from . import _tilus
from ._library import BlockInfo, Error, WeightDesc, check, library, sized
from ._operations import operations, path
from .artifact import Artifact

TYPES = {torch.float16: 1, torch.bfloat16: 2}
_TILUS = 1
_SCALES = {torch.float16: 1, torch.bfloat16: 2}
_ZEROS = {torch.uint8: 12, torch.float16: 1}
STREAMS = 6
"""Workspaces made at once, of some 17 MiB: eager work, captured graphs and streams beside them."""
TOKENS = 2048
"""Rows of x that a workspace is made for unless reserve() asks for more; beyond, a call makes a larger one, but not into a graph."""


@dataclass(frozen=True)
class Pieces:
    """What layout tilus has of a weight, and where in its block each stands: first byte and bytes."""

    type: str
    zero: float
    scales: torch.dtype
    zeros: torch.dtype | None
    places: tuple[tuple[int, int], ...]
    """Of the words, the scales, the zero points where there are any, and the bias where there is one."""


@dataclass(frozen=True)
class Weight:
    """What is known of a block on a device."""

    handle: int
    device: torch.device
    dtype: torch.dtype
    n: int
    k: int
    bits: int
    group: int
    bias: bool
    pieces: Pieces | None = None
    """Of a plain weight whose block was put together here."""
    experts: int = 0
    """0: a plain weight; else n and k are of one expert."""
    gated: bool = False
    """Of experts: gate and up, as mixture_on_device() takes them; n is of one of both."""


_weights: dict[int, Weight] = {}
_contexts: dict[torch.device, c_void_p] = {}
_sizes: dict[tuple[object, ...], int] = {}
_tokens = TOKENS


class _Extension:
    """The functions of liblpq_torch.so."""

    def __init__(self) -> None:
        if operations != "compiled":
            raise Error("LPQ_ERROR_UNSUPPORTED", "products on a device need the compiled operations of the wheel, and this is lpq_kernels by ctypes")
        self.library = ctypes.CDLL(str(path))
        self.library.lpq_torch_adopt.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int, c_int64]
        self.library.lpq_torch_adopt.restype = None
        self.library.lpq_torch_drop.argtypes, self.library.lpq_torch_drop.restype = [c_void_p], None
        self.library.lpq_torch_reserve.argtypes, self.library.lpq_torch_reserve.restype = [c_void_p, c_int, c_int, c_size_t, c_int], c_char_p
        self.library.lpq_torch_workspace.argtypes = [c_int, c_int, c_void_p, c_void_p]
        self.library.lpq_torch_workspace.restype = c_void_p


_extension: _Extension | None = None


def _functions() -> ctypes.CDLL:
    global _extension
    if _extension is None:
        _extension = _Extension()
    return _extension.library


def place(device: torch.device | str) -> torch.device:
    """A device with its number."""
    made = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if made.type == "cuda" and made.index is None else made


def _index(device: torch.device) -> int:
    return 0 if device.index is None else device.index


def context(device: torch.device) -> c_void_p:
    """lpq's context of torch's on a device, which loads the kernels once. Raises Error where there are none for it."""
    if device not in _contexts:
        handle = c_void_p()
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.zeros(1, device=device)  # makes torch's context the thread's
                check(library.lpq_context_open(None, byref(handle)))
        else:
            check(library.lpq_context_open(None, byref(handle)))
        _contexts[device] = handle
    return _contexts[device]


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _type(dtype: torch.dtype) -> int:
    if dtype not in TYPES:
        raise Error("LPQ_ERROR_ARGUMENT", f"products on a device have float16 or bfloat16 inputs, not {dtype}")
    return TYPES[dtype]


def adopt(block: torch.Tensor, handle: c_void_p, weight: Weight, alike: tuple[object, ...], places: int = 1) -> torch.Tensor:
    """Makes a block's address that of a weight, and sees to a workspace for it. Weights that are `alike` need the same; each token has
    `places` rows of x."""
    address = block.data_ptr()
    if address in _weights:
        _drop(address, _weights[address].handle)
    _functions().lpq_torch_adopt(address, handle, context(weight.device), weight.n, weight.k, TYPES[weight.dtype], weight.experts)
    _weights[address] = weight
    # Tensors of one storage share its Python object, which lives as long as any of them does, in C++, too.
    weakref.finalize(block.untyped_storage(), _drop, address, weight.handle).atexit = False
    _reserve(weight, (weight.device, weight.dtype, weight.n, weight.k, weight.group, weight.bias, weight.experts, weight.gated, *alike), places)
    return block


def _drop(address: int, handle: int) -> None:
    """Ends a weight, unless another has taken its place."""
    if address in _weights and _weights[address].handle == handle:
        del _weights[address]
        _functions().lpq_torch_drop(address)
        library.lpq_weight_destroy(handle)


def _reserve(weight: Weight, key: tuple[object, ...], places: int) -> None:
    rows = _tokens * places

    def needed() -> int:
        size = c_size_t()
        check(library.lpq_gemm_workspace(weight.handle, 1, rows, byref(size)))
        return size.value

    make_room(weight.device, key, rows, needed)


def make_room(device: torch.device, key: tuple[object, ...], rows: int, needed: Callable[[], int]) -> None:
    """Sees to workspaces of a device for so many rows of what `key` stands for, which `needed` says the bytes of."""
    if _sizes.get(key, 0) >= rows:
        return
    size = needed()
    _sizes[key] = rows
    told = _functions().lpq_torch_reserve(context(device), device.type == "cuda", _index(device), size, STREAMS)
    if told is not None:
        raise Error("LPQ_ERROR_WORKSPACE", told.decode())


def tokens_reserved() -> int:
    """How many tokens workspaces are made for."""
    return _tokens


def reserve(tokens: int) -> None:
    """Weights that are packed on a device from here on have room for products of so many tokens, in CUDA graphs, too."""
    global _tokens
    if tokens < 1:
        raise Error("LPQ_ERROR_ARGUMENT", f"tokens is {tokens}, not 1 or more")
    _tokens = max(_tokens, tokens)


def of(block: torch.Tensor) -> Weight:
    """What was packed at a block's address. Raises Error for a tensor that is no block of a device."""
    found = _weights.get(block.data_ptr())
    if found is None or found.device != block.device:
        raise Error("LPQ_ERROR_ARGUMENT", "the packed weight was not packed for this device: pack it there, it cannot be moved or copied")
    return found


def describe(block: torch.Tensor) -> BlockInfo:
    """n, k, bits, group and bias of a block of a device."""
    weight, info = of(block), sized(BlockInfo)
    info.n, info.k, info.bits, info.group, info.bias, info.bytes = weight.n, weight.k, weight.bits, weight.group, weight.bias, block.numel()
    return info


def upload(artifact: Artifact, name: str, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The block of an artifact's module on a device. Raises Error for a layout without a product there."""
    device, kind, module = place(device), _type(dtype), artifact.module(name)
    size, handle = c_size_t(), c_void_p()
    check(library.lpq_module_bytes(artifact.handle, name.encode(), byref(size)))
    block = torch.empty(size.value, dtype=torch.uint8, device=device)
    check(
        library.lpq_module_upload(
            context(device), artifact.handle, name.encode(), kind, block.data_ptr(), size.value, _stream(device), byref(handle)
        )
    )
    weight = Weight(handle.value or 0, device, dtype, module.n, module.k, _bits(module.type), module.group, module.bias)
    return adopt(block, handle, weight, (module.layout, module.type))


def _bits(type: str) -> int:
    """Bits of a type by its name: u4, i8, f6e3m2."""
    return int(type[1])


def _exact(scales: torch.Tensor) -> torch.Tensor:
    """Scales in f16 or bf16, whichever holds them as they are; f16 where neither does."""
    if scales.dtype in _SCALES:
        return scales
    half, brain = scales.to(torch.float16), scales.to(torch.bfloat16)
    return brain if bool((brain.to(scales.dtype) == scales).all()) and not bool((half.to(scales.dtype) == scales).all()) else half


def _whole(zeros: torch.Tensor) -> torch.Tensor:
    """Zero points as u8 where they are whole and fit, else f16."""
    if zeros.dtype == torch.uint8:
        return zeros
    numbers = zeros.float()
    return numbers.to(torch.uint8) if bool(((numbers == numbers.round()) & (numbers >= 0) & (numbers <= 255)).all()) else numbers.to(torch.float16)


def laid_out(pieces: list[torch.Tensor]) -> tuple[torch.Tensor, tuple[tuple[int, int], ...]]:
    """One block of all these, each from a multiple of 16 bytes on, and where."""
    places, total = [], 0
    for piece in pieces:
        places.append((total, piece.nbytes))
        total += -(-piece.nbytes // 16) * 16
    block = torch.empty(total, dtype=torch.uint8, device=pieces[0].device)
    for (start, size), piece in zip(places, pieces, strict=True):
        block[start : start + size] = piece.contiguous().view(torch.uint8).flatten()
    settled(block.device)
    return block, tuple(places)


def settled(device: torch.device) -> None:
    """Kernels may read weights while the operation before them runs: what wrote them must have ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _described(block: torch.Tensor, weight: Weight, pieces: Pieces) -> WeightDesc:
    """A weight of a block whose pieces stand where they say, as the library is told of it."""
    address = [block.data_ptr() + start for start, _ in pieces.places]
    desc = sized(WeightDesc)
    desc.layout, desc.type, desc.n, desc.k, desc.group, desc.activations = _TILUS, pieces.type.encode(), weight.n, weight.k, weight.group, TYPES[weight.dtype]
    desc.weights, desc.scales, desc.scale_type, desc.zero, desc.experts = address[0], address[1], _SCALES[pieces.scales], pieces.zero, weight.experts
    if pieces.zeros is not None:
        desc.zeros, desc.zero_type = address[2], _ZEROS[pieces.zeros]
    if weight.bias:
        desc.bias = address[-1]
    desc.gated = weight.gated
    return desc


def created(block: torch.Tensor, weight: Weight, pieces: Pieces) -> c_void_p:
    """The library's weight of a block whose pieces stand where they say."""
    handle = c_void_p()
    check(library.lpq_weight_create(context(weight.device), byref(_described(block, weight, pieces)), byref(handle)))
    return handle


def interleave_gates(block: torch.Tensor, weight: Weight, pieces: Pieces) -> None:
    """Moves rows of gate and up, whose blocks of 32 stand by turns, to where products read them."""
    check(library.lpq_gates_interleave(context(weight.device), byref(_described(block, weight, pieces)), _stream(weight.device)))
    settled(weight.device)


def tilus(
    type: str,
    shape: tuple[int, int],
    group: int,
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    dtype: torch.dtype,
    zero: float = 0,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The block of words, scales and zeros that stand in tilus' order on a device (_tilus.py)."""
    words, scales, zeros = parts
    device, (n, k) = place(words.device), shape
    _type(dtype)  # or it fails
    block, places = laid_out([words, scales, *([] if zeros is None else [zeros]), *([] if bias is None else [bias.to(dtype)])])
    pieces = Pieces(type, zero, scales.dtype, None if zeros is None else zeros.dtype, places)
    weight = Weight(0, device, dtype, n, k, _bits(type), group, bias is not None, pieces)
    handle = created(block, weight, pieces)
    return adopt(block, handle, replace(weight, handle=handle.value or 0), ("tilus", type, scales.dtype, zeros is None or zeros.dtype))


def codes(
    type: str,
    values: torch.Tensor,
    scales: torch.Tensor,
    group: int,
    zeros: torch.Tensor | None,
    zero: float,
    bias: torch.Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The block of plain codes on a device, as ops.pack_codes() takes them. Groups are 32, 64 or 128, or rows."""
    if group not in (0, 32, 64, 128):
        raise Error("LPQ_ERROR_UNSUPPORTED", f"products on a device have groups of 32, 64 or 128, or one a row, not of {group}")
    there = values.to(device)
    words = _tilus.packed(there, _bits(type))
    side = _tilus.sides(_exact(scales.to(device)))
    shift = None if zeros is None else _tilus.sides(_whole(zeros.to(device)))
    return tilus(type, (there.shape[0], there.shape[1]), group, (words, side, shift), dtype, zero, None if bias is None else bias.to(device))


def shareable(artifact: Artifact, name: str) -> bool:
    """Whether parts of a module can be cut out where it is stored."""
    stored = set(artifact.tensors())
    return artifact.module(name).layout == "tilus" and f"{name}.packed" in stored and f"{name}.permutation" not in stored


def share(artifact: Artifact, name: str, n: tuple[int, int], k: tuple[int, int], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The block of a share of a module on a device: whole blocks of layout tilus, 32 outputs by 128 inputs, and whole groups."""
    module, stored = artifact.module(name), set(artifact.tensors())
    if not shareable(artifact, name):
        raise Error("LPQ_ERROR_UNSUPPORTED", f"module '{name}': ranks on a device share modules of layout tilus, packed as one, without a permutation")
    unit = max(_tilus.COLUMNS, module.group)
    for what, (first, end), size, each in (("outputs", n, module.n, _tilus.ROWS), ("inputs", k, module.k, unit)):
        if first % each or (end % each and end != size):
            raise Error("LPQ_ERROR_UNSUPPORTED", f"module '{name}': a share of {what} {first} to {end} is no whole number of blocks of {each}")
    groups = (k[0] // module.group, -(-k[1] // module.group)) if module.group else (0, 1)
    blocks = (k[0] // _tilus.COLUMNS, -(-k[1] // _tilus.COLUMNS))

    def cut(last: str, second: tuple[int, int]) -> torch.Tensor | None:
        return _tilus.slice_of(artifact.tensor(f"{name}.{last}"), n, second).to(device) if f"{name}.{last}" in stored else None

    words, scales, zeros = cut("packed", blocks), cut("scales", groups), cut("zeros", groups)
    assert words is not None and scales is not None
    bias = artifact.tensor(f"{name}.bias")[n[0] : n[1]].to(device) if module.bias and k[0] == 0 else None
    return tilus(module.type, (n[1] - n[0], k[1] - k[0]), module.group, (words, scales, zeros), dtype, module.zero, bias)


def rows(ids: torch.Tensor, block: torch.Tensor, k: int, dtype: torch.dtype) -> torch.Tensor:
    """ops.rows() on a device: there is none."""
    raise Error("LPQ_ERROR_UNSUPPORTED", "rows of a packed weight are read on a CPU, not on a device: a tied table stays in floats there")


@dataclass(frozen=True)
class Call:
    """lpq_gemm with its arguments, for a caller of its own: addresses and numbers."""

    gemm: int
    weight: int
    workspace: int
    bytes: int
    stream: int


def prepared(block: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Call:
    """What a product of x by a block calls; one was computed into y."""
    weight = of(block)
    y.copy_(torch.ops.lpq_kernels.linear_on_device(x, block, weight.n, weight.k))
    size, stream = c_size_t(), c_void_p()
    address = _functions().lpq_torch_workspace(weight.device.type == "cuda", _index(weight.device), byref(size), byref(stream))
    return Call(ctypes.cast(library.lpq_gemm, c_void_p).value or 0, weight.handle, address, size.value, stream.value or 0)
