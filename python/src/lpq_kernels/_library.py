"""liblpq_kernels.so by ctypes: lpq_kernels.h has the contract."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, TypeVar

ABI = 1


class Error(RuntimeError):
    """A call of the library failed. `name` is its status (LPQ_ERROR_...), the text one sentence."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name


class Tensor(ctypes.Structure):
    """lpq_tensor."""

    _fields_ = [("size", c_size_t), ("name", c_char_p), ("dtype", c_int), ("rank", c_int), ("shape", c_int64 * 8), ("bytes", c_size_t), ("data", c_void_p)]


class ModuleInfo(ctypes.Structure):
    """lpq_module_info."""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("layout_name", c_char_p),
        ("layout", c_int),
        ("type", c_char_p),
        ("n", c_int64),
        ("k", c_int64),
        ("n_padded", c_int64),
        ("k_padded", c_int64),
        ("group", c_int),
        ("tensors", c_int64),
        ("bias", c_int),
        ("zero", c_double),
    ]


class Codes(ctypes.Structure):
    """lpq_cpu_codes."""

    _fields_ = [
        ("size", c_size_t),
        ("type", c_char_p),
        ("n", c_int64),
        ("k", c_int64),
        ("group", c_int),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("zeros", c_void_p),
        ("zero", c_double),
        ("permutation", c_void_p),
        ("bias", c_void_p),
    ]


class Share(ctypes.Structure):
    """lpq_cpu_share."""

    _fields_ = [("size", c_size_t), ("n", c_int64), ("n_count", c_int64), ("k", c_int64), ("k_count", c_int64)]


class BlockInfo(ctypes.Structure):
    """lpq_cpu_info."""

    _fields_ = [("size", c_size_t), ("n", c_int64), ("k", c_int64), ("bits", c_int), ("group", c_int), ("bias", c_int), ("bytes", c_size_t)]


class WeightDesc(ctypes.Structure):
    """lpq_weight_desc."""

    _fields_ = [
        ("size", c_size_t),
        ("layout", c_int),
        ("type", c_char_p),
        ("n", c_int64),
        ("k", c_int64),
        ("n_padded", c_int64),
        ("k_padded", c_int64),
        ("group", c_int),
        ("activations", c_int),
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("scale_type", c_int),
        ("zero_type", c_int),
        ("zeros", c_void_p),
        ("zero", c_double),
        ("permutation", c_void_p),
        ("bias", c_void_p),
        ("experts", c_int),
        ("metadata", c_void_p),
        ("block_bits", c_void_p),
        ("block_clip", c_void_p),
        ("blocks", c_void_p),
        ("eight_bit_blocks", c_int64),
        ("gated", c_int),
    ]


class MixtureDesc(ctypes.Structure):
    """lpq_mixture_desc."""

    _fields_ = [
        ("size", c_size_t),
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("activation", c_int),
        ("places", c_int64),
        ("some_none", c_int),
        ("alpha", c_double),
        ("limit", c_double),
    ]


class KvDesc(ctypes.Structure):
    """lpq_kv_desc."""

    _fields_ = [
        ("size", c_size_t),
        ("form", c_int),
        ("key_bits", c_int),
        ("value_bits", c_int),
        ("by_token", c_int),
        ("key_group", c_int),
        ("value_group", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("head_dim", c_int),
        ("outer", c_int),
        ("page_tokens", c_int64),
        ("fit", c_int),
    ]


class KvInfo(ctypes.Structure):
    """lpq_kv_info."""

    _fields_ = [("size", c_size_t), ("block", c_int64), ("unit", c_int64), ("page_bytes", c_size_t * 4)]


class KvPages(ctypes.Structure):
    """lpq_kv_pages."""

    _fields_ = [
        ("size", c_size_t),
        ("count", c_int64),
        ("keys", c_void_p),
        ("key_numbers", c_void_p),
        ("values", c_void_p),
        ("value_numbers", c_void_p),
    ]


class KvBatch(ctypes.Structure):
    """lpq_kv_batch."""

    _fields_ = [
        ("size", c_size_t),
        ("sequences", c_int64),
        ("table_pages", c_int64),
        ("tail_room", c_int64),
        ("table", c_void_p),
        ("lengths", c_void_p),
        ("tails", c_void_p),
        ("tail_keys", c_void_p),
        ("tail_values", c_void_p),
        ("sinks", c_void_p),
        ("sinks_type", c_int),
        ("query_type", c_int),
    ]


class LatentDesc(ctypes.Structure):
    """lpq_latent_desc."""

    _fields_ = [
        ("size", c_size_t),
        ("bits", c_int),
        ("group", c_int),
        ("latent", c_int),
        ("rotary", c_int),
        ("heads", c_int),
        ("page_tokens", c_int64),
    ]


class LatentInfo(ctypes.Structure):
    """lpq_latent_info."""

    _fields_ = [("size", c_size_t), ("unit", c_int64), ("page_bytes", c_size_t)]


class LatentPages(ctypes.Structure):
    """lpq_latent_pages."""

    _fields_ = [("size", c_size_t), ("count", c_int64), ("data", c_void_p)]


class LatentBatch(ctypes.Structure):
    """lpq_latent_batch."""

    _fields_ = [
        ("size", c_size_t),
        ("sequences", c_int64),
        ("table_pages", c_int64),
        ("table", c_void_p),
        ("lengths", c_void_p),
        ("query_type", c_int),
    ]


_FUNCTIONS: dict[str, list[Any]] = {
    "lpq_artifact_open": [c_char_p, POINTER(c_void_p)],
    "lpq_artifact_tensor": [c_void_p, c_char_p, c_void_p],
    "lpq_artifact_tensor_at": [c_void_p, c_int64, c_void_p],
    "lpq_artifact_module": [c_void_p, c_char_p, c_void_p],
    "lpq_artifact_module_at": [c_void_p, c_int64, c_void_p],
    "lpq_cpu_module_bytes": [c_void_p, c_char_p, POINTER(c_size_t)],
    "lpq_cpu_module_pack": [c_void_p, c_char_p, c_void_p, c_size_t, c_int],
    "lpq_cpu_share_bytes": [c_void_p, c_char_p, c_void_p, POINTER(c_size_t)],
    "lpq_cpu_share_pack": [c_void_p, c_char_p, c_void_p, c_void_p, c_size_t, c_int],
    "lpq_cpu_codes_bytes": [c_void_p, POINTER(c_size_t)],
    "lpq_cpu_codes_pack": [c_void_p, c_void_p, c_size_t, c_int],
    "lpq_cpu_block": [c_void_p, c_size_t, c_void_p],
    "lpq_cpu_gemm": [c_void_p, c_size_t, c_int64, c_int, c_void_p, c_void_p, c_int],
    "lpq_cpu_gemm_experts": [c_void_p, c_size_t, c_int64, c_int64, c_int, c_void_p, c_void_p, c_void_p, c_int],
    "lpq_context_open": [c_void_p, POINTER(c_void_p)],
    "lpq_weight_create": [c_void_p, c_void_p, POINTER(c_void_p)],
    "lpq_gates_interleave": [c_void_p, c_void_p, c_void_p],
    "lpq_gemm_workspace": [c_void_p, c_int64, c_int64, POINTER(c_size_t)],
    "lpq_mixture_sizes": [c_void_p, c_int64, POINTER(c_size_t), POINTER(c_size_t)],
    "lpq_module_bytes": [c_void_p, c_char_p, POINTER(c_size_t)],
    "lpq_module_upload": [c_void_p, c_void_p, c_char_p, c_int, c_void_p, c_size_t, c_void_p, POINTER(c_void_p)],
    "lpq_kv_describe": [c_void_p, c_void_p],
    "lpq_cpu_kv_pack": [c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int],
    "lpq_cpu_kv_append": [c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int],
    "lpq_cpu_kv_decode": [c_void_p, c_int64, c_void_p, c_void_p, c_int, c_double, c_void_p, c_void_p, c_int],
    "lpq_latent_describe": [c_void_p, c_void_p],
    "lpq_cpu_latent_pack": [c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int],
    "lpq_cpu_latent_append": [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int],
    "lpq_cpu_latent_decode": [c_void_p, c_int64, c_void_p, c_void_p, c_int, c_double, c_void_p, c_void_p, c_int],
    "lpq_cpu_rows": [c_void_p, c_size_t, c_int64, c_void_p, c_int, c_void_p, c_int],
}


def _open() -> ctypes.CDLL:
    path = os.environ.get("LPQ_KERNELS") or str(Path(__file__).with_name("liblpq_kernels.so"))
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{path} does not load ({error}): install the wheel, or set LPQ_KERNELS to liblpq_kernels.so.1") from None
    if library.lpq_abi_version() != ABI:
        raise ImportError(f"{path} has ABI {library.lpq_abi_version()}, and this package is for {ABI}")
    for name, arguments in _FUNCTIONS.items():
        if not hasattr(library, name):
            raise ImportError(f"{path} is older than this package: it has no {name}")
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    for name in ("lpq_version", "lpq_last_error", "lpq_status_name"):
        getattr(library, name).restype = c_char_p
    library.lpq_weight_destroy.argtypes, library.lpq_weight_destroy.restype = [c_void_p], None
    library.lpq_artifact_close.argtypes, library.lpq_artifact_close.restype = [c_void_p], None
    for name in ("lpq_artifact_modules", "lpq_artifact_tensors"):
        getattr(library, name).argtypes, getattr(library, name).restype = [c_void_p], c_int64
    return library


library = _open()
version: str = library.lpq_version().decode()


def check(status: int) -> None:
    """Raises Error with the library's sentence unless `status` is LPQ_OK."""
    if status != 0:
        raise Error(library.lpq_status_name(status).decode(), library.lpq_last_error().decode())


Struct = TypeVar("Struct", bound=ctypes.Structure)


def sized(kind: type[Struct]) -> Struct:
    """A zeroed struct that knows its size."""
    made = kind()
    made.size = ctypes.sizeof(kind)
    return made
