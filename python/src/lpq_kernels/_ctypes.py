"""The operations by ctypes, in Python: where the torch is older than the stable ABI of the compiled ones, or a tree has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref

import torch
from torch.nn import functional

from ._library import BlockInfo, Error, check, library, sized

_TYPES = {torch.float32: 3, torch.float16: 1, torch.bfloat16: 2}

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def describe(block: torch.Tensor) -> BlockInfo:
    """n, k, bits, group and bias of a block. Raises Error for memory that is none, or cut short."""
    info = sized(BlockInfo)
    check(library.lpq_cpu_block(block.data_ptr(), block.numel(), byref(info)))
    return info


def _type(dtype: torch.dtype, what: str) -> int:
    if dtype not in _TYPES:
        raise Error("LPQ_ERROR_ARGUMENT", f"{what} is no float32, float16 or bfloat16")
    return _TYPES[dtype]


def _product(x: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """y [..., N] = x [..., K] W^T + bias, of x's type."""
    info = describe(block)
    if x.dim() == 0 or x.shape[-1] != info.k:
        raise Error("LPQ_ERROR_ARGUMENT", f"x has the shape {list(x.shape)}, and the packed weight is [{info.n}, {info.k}]")
    rows = x.reshape(-1, info.k).contiguous()
    y = torch.empty((rows.shape[0], info.n), dtype=x.dtype)
    kind = _type(x.dtype, "x")
    check(library.lpq_cpu_gemm(block.data_ptr(), block.numel(), rows.shape[0], kind, rows.data_ptr(), y.data_ptr(), torch.get_num_threads()))
    return y.view(*x.shape[:-1], info.n)


def linear(x: torch.Tensor, block: torch.Tensor, n: int, k: int) -> torch.Tensor:
    info = describe(block)
    if (info.n, info.k) != (n, k):
        raise Error("LPQ_ERROR_ARGUMENT", f"the packed weight is [{info.n}, {info.k}], not [{n}, {k}]")
    return _product(x, block)


def experts_linear(x: torch.Tensor, offsets: torch.Tensor, block: torch.Tensor, n: int, k: int) -> torch.Tensor:
    info, experts = describe(block), offsets.numel() - 1  # of the first expert; the library compares the others with it
    if (info.n, info.k) != (n, k):
        raise Error("LPQ_ERROR_ARGUMENT", f"the packed experts are [{info.n}, {info.k}], not [{n}, {k}]")
    if x.dim() != 2:
        raise Error("LPQ_ERROR_ARGUMENT", f"x has the shape {list(x.shape)}, not [rows of all experts, K]")
    if offsets.dtype != torch.int32 or offsets.dim() != 1 or not offsets.is_contiguous():
        raise Error("LPQ_ERROR_ARGUMENT", "offsets are no dense int32 of one dimension")
    if x.shape[1] != k:
        raise Error("LPQ_ERROR_ARGUMENT", f"x has the shape {list(x.shape)}, and the packed experts are [{info.n}, {info.k}]")
    kind, rows_of = _type(x.dtype, "x"), x.contiguous()
    y = torch.empty((x.shape[0], n), dtype=x.dtype)
    at = (rows_of.data_ptr(), offsets.data_ptr(), y.data_ptr())
    check(library.lpq_cpu_gemm_experts(block.data_ptr(), block.numel(), experts, x.shape[0], kind, *at, torch.get_num_threads()))
    return y


def rows(ids: torch.Tensor, block: torch.Tensor, k: int, dtype: torch.dtype) -> torch.Tensor:
    wanted = ids.reshape(-1).to(torch.int64).contiguous()
    if describe(block).k != k:
        raise Error("LPQ_ERROR_ARGUMENT", f"the packed weight has {describe(block).k} columns, not {k}")
    y = torch.empty((wanted.numel(), k), dtype=dtype)
    kind = _type(dtype, "dtype")
    check(library.lpq_cpu_rows(block.data_ptr(), block.numel(), wanted.numel(), wanted.data_ptr(), kind, y.data_ptr(), torch.get_num_threads()))
    return y.view(*ids.shape, k)


def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate: Sequence[torch.Tensor],
    up: Sequence[torch.Tensor],
    down: Sequence[torch.Tensor],
    activation: str,
) -> torch.Tensor:
    act, y = ACTIVATIONS[activation], torch.zeros(x.shape, dtype=torch.float32)
    for expert in ids.unique().tolist():
        if expert == -1:
            continue
        if not 0 <= expert < len(gate):
            raise Error("LPQ_ERROR_ARGUMENT", f"expert {expert} is asked for, and there are {len(gate)}")
        token, place = (ids == expert).nonzero(as_tuple=True)
        rows = x[token]
        inner = (act(_product(rows, gate[expert]).float()) * _product(rows, up[expert]).float()).to(x.dtype)
        y.index_add_(0, token, _product(inner, down[expert]).float() * weights[token, place, None].float())
    return y.to(x.dtype)


def define() -> None:
    """Makes them torch's lpq_kernels::linear, experts_linear, rows and experts."""
    for made in (linear, experts_linear, rows, experts):
        torch.library.custom_op(f"lpq_kernels::{made.__name__}", made, mutates_args=(), device_types="cpu")
