"""lpq_kernels.h for Python, by ctypes alone: artifacts, weights on the GPU, products of torch tensors.

    import lpq_kernels as lpq
    context = lpq.Context()                                # torch's CUDA context
    with lpq.Artifact("tiny-w4-sm90") as artifact:
        linear = context.load(artifact, "model.layers.0.mlp.down_proj", torch.float16)
    y = linear(x)                                          # x [..., K] on the GPU -> y [..., N]

The library is looked for in $LPQ_KERNELS, then where the system's loader looks. Reading artifacts needs neither torch nor a GPU.
"""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_void_p

F16, BF16 = 1, 2
DTYPES = {1: "f16", 2: "bf16", 3: "f32", 4: "f64", 5: "f8_e4m3", 6: "f8_e5m2", 7: "f8_e8m0", 8: "i8", 9: "i16", 10: "i32",
          11: "i64", 12: "u8", 13: "u16", 14: "u32", 15: "u64", 16: "bool"}
LAYOUT_OTHER, LAYOUT_TILUS, LAYOUT_MARLIN, LAYOUT_TURBOMIND, LAYOUT_SPARSE_MARLIN, LAYOUT_COMET = range(6)
SETTLED = 1
ABI = 1


class Tensor(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("dtype", c_int), ("rank", c_int), ("shape", c_int64 * 8),
                ("bytes", c_size_t), ("data", c_void_p)]

    @property
    def dims(self):
        return list(self.shape[: self.rank])

    def copy(self):
        """The bytes, as a bytearray of Python's own."""
        return bytearray(ctypes.string_at(self.data, self.bytes)) if self.bytes else bytearray()


class Module(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("layout_name", c_char_p), ("layout", c_int), ("type", c_char_p),
                ("n", c_int64), ("k", c_int64), ("n_padded", c_int64), ("k_padded", c_int64), ("group", c_int),
                ("tensors", c_int64), ("bias", c_int), ("zero", c_double)]


class Device(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", ctypes.c_char * 128), ("ordinal", c_int), ("arch", c_int),
                ("multiprocessors", c_int), ("driver", c_int)]


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("kernels", c_char_p), ("tuning", c_char_p)]


class Error(RuntimeError):
    """A call failed; `name` is its status (LPQ_ERROR_...)."""

    def __init__(self, name, sentence):
        super().__init__(f"{name}: {sentence}")
        self.name = name


def _open():
    library = ctypes.CDLL(os.environ.get("LPQ_KERNELS", "liblpq_kernels.so.1"))
    for name, *arguments in [
        ("lpq_context_open", c_void_p, POINTER(c_void_p)),
        ("lpq_context_device", c_void_p, c_void_p),
        ("lpq_gemm_workspace", c_void_p, c_int64, c_int64, POINTER(c_size_t)),
        ("lpq_workspace_init", c_void_p, c_void_p, c_size_t, c_void_p),
        ("lpq_workspace_check", c_void_p, c_void_p, c_void_p),
        ("lpq_gemm", c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_uint),
        ("lpq_gemm_explain", c_void_p, c_int64, c_char_p, c_size_t, POINTER(c_size_t)),
        ("lpq_artifact_open", c_char_p, POINTER(c_void_p)),
        ("lpq_artifact_tensor", c_void_p, c_char_p, c_void_p),
        ("lpq_artifact_module_at", c_void_p, c_int64, c_void_p),
        ("lpq_artifact_module", c_void_p, c_char_p, c_void_p),
        ("lpq_module_bytes", c_void_p, c_char_p, POINTER(c_size_t)),
        ("lpq_module_upload", c_void_p, c_void_p, c_char_p, c_int, c_void_p, c_size_t, c_void_p, POINTER(c_void_p)),
    ]:
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    for name in ["lpq_context_close", "lpq_weight_destroy", "lpq_artifact_close"]:
        getattr(library, name).argtypes, getattr(library, name).restype = [c_void_p], None
    library.lpq_artifact_modules.argtypes, library.lpq_artifact_modules.restype = [c_void_p], c_int64
    for name in ["lpq_version", "lpq_last_error", "lpq_status_name"]:
        getattr(library, name).restype = c_char_p
    if library.lpq_abi_version() != ABI:
        raise ImportError(f"liblpq_kernels has ABI {library.lpq_abi_version()}, this file is for {ABI}")
    return library


library = _open()


def check(status):
    if status != 0:
        raise Error(library.lpq_status_name(status).decode(), library.lpq_last_error().decode())


def sized(kind):
    made = kind()
    made.size = ctypes.sizeof(kind)
    return made


class Artifact:
    """A directory that `lpq pack` wrote."""

    def __init__(self, directory):
        self.handle = c_void_p()
        check(library.lpq_artifact_open(os.fsencode(directory), byref(self.handle)))

    def close(self):
        library.lpq_artifact_close(self.handle)
        self.handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def modules(self):
        for i in range(library.lpq_artifact_modules(self.handle)):
            info = sized(Module)
            check(library.lpq_artifact_module_at(self.handle, i, byref(info)))
            yield info

    def module(self, name):
        info = sized(Module)
        check(library.lpq_artifact_module(self.handle, name.encode(), byref(info)))
        return info

    def tensor(self, name):
        tensor = sized(Tensor)
        check(library.lpq_artifact_tensor(self.handle, name.encode(), byref(tensor)))
        return tensor


class Context:
    """torch's CUDA context on its current device, and a workspace for each stream."""

    def __init__(self, kernels=None, tuning=None):
        import torch

        self.torch = torch
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the context the current one
        options = sized(Options)
        options.kernels = kernels and os.fsencode(kernels)
        options.tuning = tuning if tuning is None else os.fsencode(tuning)
        self.handle = c_void_p()
        check(library.lpq_context_open(byref(options), byref(self.handle)))
        self.workspaces = {}

    def close(self):
        library.lpq_context_close(self.handle)
        self.handle = None

    def device(self):
        info = sized(Device)
        check(library.lpq_context_device(self.handle, byref(info)))
        return info

    def workspace(self, bytes):
        """Of the current stream, zeroed where it must be; a larger one replaces it (never while a graph is recorded)."""
        stream = self.torch.cuda.current_stream().cuda_stream
        found = self.workspaces.get(stream)
        if found is None or found.numel() < bytes:
            found = self.torch.empty(bytes, dtype=self.torch.uint8, device="cuda")
            check(library.lpq_workspace_init(self.handle, found.data_ptr(), bytes, stream))
            self.workspaces[stream] = found
        return found

    def load(self, artifact, name, dtype, most_tokens=64):
        return Linear(self, artifact, name, dtype, most_tokens)


class Linear:
    """A module of an artifact on the GPU."""

    def __init__(self, context, artifact, name, dtype, most_tokens):
        torch = context.torch
        info = artifact.module(name)
        self.context, self.n, self.k, self.dtype = context, info.n, info.k, dtype
        bytes = c_size_t()
        check(library.lpq_module_bytes(artifact.handle, name.encode(), byref(bytes)))
        self.memory = torch.empty(bytes.value, dtype=torch.uint8, device="cuda")
        self.handle = c_void_p()
        kind = {torch.float16: F16, torch.bfloat16: BF16}[dtype]
        stream = torch.cuda.current_stream().cuda_stream
        check(library.lpq_module_upload(context.handle, artifact.handle, name.encode(), kind, self.memory.data_ptr(), bytes.value,
                                        stream, byref(self.handle)))
        self.prepare(most_tokens)

    def prepare(self, most_tokens):
        """For up to so many tokens: the workspace's size. Loads the kernels, so that products may be recorded afterwards."""
        bytes = c_size_t()
        check(library.lpq_gemm_workspace(self.handle, 1, most_tokens, byref(bytes)))
        self.most, self.bytes = most_tokens, bytes.value

    def __call__(self, x, out=None, settled=False):
        torch = self.context.torch
        rows = x.reshape(-1, self.k)
        if rows.dtype != self.dtype or not rows.is_contiguous() or not rows.is_cuda:
            raise ValueError(f"x is not a contiguous {self.dtype} tensor on the GPU")
        if rows.shape[0] > self.most:
            self.prepare(rows.shape[0])
        y = torch.empty((rows.shape[0], self.n), dtype=self.dtype, device=x.device) if out is None else out.view(-1, self.n)
        workspace = self.context.workspace(self.bytes)
        stream = torch.cuda.current_stream().cuda_stream
        check(library.lpq_gemm(self.handle, rows.shape[0], rows.data_ptr(), y.data_ptr(), workspace.data_ptr(), workspace.numel(),
                               stream, SETTLED if settled else 0))
        return y.view(*x.shape[:-1], self.n)

    def explain(self, tokens):
        text = ctypes.create_string_buffer(8192)
        check(library.lpq_gemm_explain(self.handle, tokens, text, len(text), None))
        return text.value.decode()

    def close(self):
        library.lpq_weight_destroy(self.handle)
        self.handle = None
