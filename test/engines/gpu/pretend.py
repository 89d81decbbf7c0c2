"""Cells with products on a device that is pretended: vLLM runs on the CPU, and the package computes as on a device whose library is
python/tests/device_stub.c. So a model is loaded, packed, compiled and run by the code that a GPU runs, but the kernels.

    LPQ_KERNELS=STUB PYTHONPATH=WHEEL python3 pretend.py PREPARED EXPRESSION
"""

import ctypes
import json
import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import drive  # noqa: E402

os.environ.update(drive.COMMON, VLLM_DISABLED_KERNELS=drive.VLLM_KERNELS, VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
import torch  # noqa: E402
import work  # noqa: E402
from rows import rows  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402

load_general_plugins()
from lpq_kernels import _device, _mixture, ops  # noqa: E402
from lpq_kernels import transformers as loaded  # noqa: E402
from lpq_kernels._library import library  # noqa: E402
from lpq_kernels.vllm import artifacts, compressed, experts, gptq, gptq_experts, kernel, refusal  # noqa: E402


class Platform:
    def is_cpu(self) -> bool:
        return False


HOST = torch.device("cpu")
for module in (artifacts, compressed, experts, gptq, gptq_experts, kernel):
    for name, value in {"ON_DEVICE": True, "here": lambda: HOST, "FLOATS": (torch.float16, torch.bfloat16)}.items():
        if hasattr(module, name):
            setattr(module, name, value)
refusal.current_platform = Platform()
ops._elsewhere = lambda device, dtype: (HOST, dtype)
ops._linear = torch.ops.lpq_kernels.linear_on_device.default
ops._experts = _mixture.experts
ops.stacked = lambda gate, up, down, *, places: _mixture.stacked(gate, up, down, places)
ops.describe = loaded.Linear.__init__.__globals__["ops"].describe = _device.describe

if __name__ == "__main__":
    prepared, expression = sys.argv[1:]
    cells = [cell for cell in rows(Path(prepared), "cpu", True, drive.VLLM_KERNELS) if re.search(expression, cell["name"])]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"device": "cpu", "cells": cells}, file)
        file.flush()
        work.main(file.name)
    print("@@grouped", ctypes.c_int.in_dll(library, "stub_mixtures").value)
