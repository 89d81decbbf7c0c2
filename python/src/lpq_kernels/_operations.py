"""torch.ops.lpq_kernels: compiled ones on torch's stable ABI where the wheel and the torch have them, else ctypes; their fakes.

A call of a compiled one costs the host less than 3 µs, by ctypes some 14. Results have the same bytes. LPQ_TORCH_OPS names another file of
compiled ones, or is `ctypes`.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from pathlib import Path

import torch

from . import _ctypes
from ._library import library

OLDEST = (2, 10)
"""The first torch whose stable ABI has what extension/ops.cpp calls."""


def _file() -> Path | None:
    """The compiled operations; None where ctypes is asked for, or a tree has none."""
    named = os.environ.get("LPQ_TORCH_OPS")
    if named:
        return None if named == "ctypes" else Path(named)
    beside = Path(__file__).with_name("liblpq_torch.so")
    return beside if beside.is_file() else None


def _old() -> bool:
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) < OLDEST


def _load() -> tuple[str, Path | None]:
    """Registers the operations; returns which, "compiled" or "ctypes", and the compiled ones' file."""
    path = _file()
    if path is not None and _old():
        oldest = ".".join(map(str, OLDEST))
        warnings.warn(f"lpq_kernels' compiled operations need torch {oldest}, and this is {torch.__version__}: calls go by ctypes, which costs more", stacklevel=2)
        path = None
    if path is None:
        _ctypes.define()
        return "ctypes", None
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(f"{path} does not load ({error}): LPQ_TORCH_OPS=ctypes goes without it") from None
    bind = ctypes.CDLL(str(path)).lpq_torch_bind
    bind.argtypes, bind.restype = [ctypes.c_void_p], ctypes.c_char_p
    absent = bind(library._handle)
    if absent is not None:
        raise ImportError(f"the library of lpq_kernels is older than this package: it has no {absent.decode()}")
    return "compiled", path


operations, path = _load()
"""Which torch.ops.lpq_kernels are: "compiled" or "ctypes"."""

if operations == "compiled":

    @torch.library.register_fake("lpq_kernels::linear_on_device")
    def _(x: torch.Tensor, block: torch.Tensor, n: int, k: int) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], n))

    @torch.library.register_fake("lpq_kernels::experts_linear_on_device")
    def _(x: torch.Tensor, offsets: torch.Tensor, block: torch.Tensor, n: int, k: int) -> torch.Tensor:
        return x.new_empty((x.shape[0], n))

    @torch.library.register_fake("lpq_kernels::mixture_on_device")
    def _(x: torch.Tensor, *_: object) -> torch.Tensor:
        return x.new_empty(x.shape)


@torch.library.register_fake("lpq_kernels::experts_linear")
def _(x: torch.Tensor, offsets: torch.Tensor, block: torch.Tensor, n: int, k: int) -> torch.Tensor:
    return x.new_empty((x.shape[0], n))


@torch.library.register_fake("lpq_kernels::linear")
def _(x: torch.Tensor, block: torch.Tensor, n: int, k: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], n))


@torch.library.register_fake("lpq_kernels::rows")
def _(ids: torch.Tensor, block: torch.Tensor, k: int, dtype: torch.dtype) -> torch.Tensor:
    return ids.new_empty((*ids.shape, k), dtype=dtype)


@torch.library.register_fake("lpq_kernels::experts")
def _(x: torch.Tensor, *_: object) -> torch.Tensor:
    return x.new_empty(x.shape)
