"""Artifacts: directories that `lpq pack` wrote."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Iterator
from ctypes import byref, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from ._library import Error, ModuleInfo, Tensor, check, library, sized
from ._verify import require_verified

# lpq_dtype -> torch's.
DTYPES: dict[int, torch.dtype] = {
    1: torch.float16,
    2: torch.bfloat16,
    3: torch.float32,
    4: torch.float64,
    5: torch.float8_e4m3fn,
    6: torch.float8_e5m2,
    7: torch.uint8,
    8: torch.int8,
    9: torch.int16,
    10: torch.int32,
    11: torch.int64,
    12: torch.uint8,
    13: torch.uint16,
    14: torch.uint32,
    15: torch.uint64,
    16: torch.bool,
}

# lpq_dtype by its number, as safetensors names it.
_STORED = b" F16 BF16 F32 F64 F8_E4M3 F8_E5M2 F8_E8M0 I8 I16 I32 I64 U8 U16 U32 U64 BOOL".split(b" ")


@dataclass(frozen=True)
class Module:
    """A packed module as its artifact describes it. `group` 0: one scale per row."""

    name: str
    layout: str
    type: str
    n: int
    k: int
    group: int
    bias: bool
    zero: float = 0
    """Layout tilus without zero points: the code that stands for 0."""


class Artifact:
    """A directory that `lpq pack` wrote, mapped read-only. Raises Error for what is no artifact, cut short or contradictory.

    Offsets, shapes and names are checked when it is opened; `check_hashes` compares contents with lpq.json, too;
    unless it is given, LPQ_CHECK_HASHES=1 of the environment does, whatever opens the artifact, and LPQ_REQUIRE_VERIFY=1 has `lpq verify`
    pass it first.
    """

    def __init__(self, directory: str | os.PathLike[str], *, check_hashes: bool | None = None) -> None:
        self.directory = Path(directory)
        self._handle: c_void_p | None = None
        if check_hashes is None and os.environ.get("LPQ_REQUIRE_VERIFY") == "1":
            require_verified(os.fspath(directory))
        handle = c_void_p()
        check(library.lpq_artifact_open(os.fsencode(directory), byref(handle)))
        self._handle = handle
        if os.environ.get("LPQ_CHECK_HASHES") == "1" if check_hashes is None else check_hashes:
            try:
                self.check_hashes()
            except BaseException:
                self.close()
                raise

    @property
    def handle(self) -> c_void_p:
        if self._handle is None:
            raise Error("LPQ_ERROR_ARGUMENT", f"{self.directory} was closed")
        return self._handle

    def close(self) -> None:
        """Unmaps the files. What was packed from them stays."""
        if self._handle is not None:
            library.lpq_artifact_close(self._handle)
        self._handle = None

    def __enter__(self) -> Artifact:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def modules(self) -> Iterator[Module]:
        """Every packed module, in order of names."""
        for i in range(library.lpq_artifact_modules(self.handle)):
            info = sized(ModuleInfo)
            check(library.lpq_artifact_module_at(self.handle, i, byref(info)))
            yield _module(info)

    def module(self, name: str) -> Module:
        """The packed module of that name. Raises Error where there is none."""
        info = sized(ModuleInfo)
        check(library.lpq_artifact_module(self.handle, name.encode(), byref(info)))
        return _module(info)

    def tensors(self) -> list[str]:
        """Names of all stored tensors, in order."""
        return [self._tensor_at(i).name.decode() for i in range(library.lpq_artifact_tensors(self.handle))]

    def tensor(self, name: str) -> torch.Tensor:
        """A copy of a stored tensor. Raises Error where there is none."""
        stored = self._tensor(name)
        made = torch.empty(list(stored.shape[: stored.rank]), dtype=DTYPES[stored.dtype])
        if stored.bytes:
            ctypes.memmove(made.data_ptr(), stored.data, stored.bytes)
        return made

    def check_hashes(self) -> None:
        """Raises Error for the first tensor or file whose contents are not those that lpq.json was written for."""
        manifest = json.loads((self.directory / "lpq.json").read_text())
        wanted: dict[str, str] = dict(manifest.get("carried", {}))
        for entry in manifest["modules"].values():
            wanted.update(entry["tensors"])
        for name, digest in wanted.items():
            stored = self._tensor(name)
            if _hash(stored) != digest:
                raise Error("LPQ_ERROR_ARTIFACT", f"tensor '{name}' is not what lpq.json was written for: its SHA-256 differs")
        for name, digest in manifest.get("files", {}).items():
            path = self.directory / name
            if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                raise Error("LPQ_ERROR_ARTIFACT", f"{path} is missing or not what lpq.json was written for: its SHA-256 differs")

    def _tensor(self, name: str) -> Tensor:
        stored = sized(Tensor)
        check(library.lpq_artifact_tensor(self.handle, name.encode(), byref(stored)))
        return stored

    def _tensor_at(self, i: int) -> Tensor:
        stored = sized(Tensor)
        check(library.lpq_artifact_tensor_at(self.handle, i, byref(stored)))
        return stored


def _hash(stored: Tensor) -> str:
    """formats/safetensors/spec.md: name and dtype behind their lengths, dimensions behind their number, bytes; numbers are u64."""

    def words(*values: int) -> bytes:
        return b"".join(value.to_bytes(8, "little") for value in values)

    name, dtype, shape = stored.name, _STORED[stored.dtype], list(stored.shape[: stored.rank])
    running = hashlib.sha256(words(len(name)) + name + words(len(dtype)) + dtype + words(len(shape), *shape))
    if stored.bytes:  # read where they are mapped
        running.update((ctypes.c_char * stored.bytes).from_address(stored.data))
    return running.hexdigest()


def _module(info: ModuleInfo) -> Module:
    return Module(info.name.decode(), info.layout_name.decode(), info.type.decode(), info.n, info.k, info.group, bool(info.bias), info.zero)
