"""A plugin of vLLM, on a CPU and on CUDA devices: lpq's products under the checkpoints that vLLM loads, and under artifacts of `lpq pack`.

vLLM finds it by its entry point (group `vllm.general_plugins`, name `lpq`); nothing is imported by hand and nothing is patched.

- 4-bit gptq, awq, and compressed-tensors of 2 to 8 bits: `LpqLinearKernel` stands last in vLLM's list of kernels, so it takes what the others
  refuse; VLLM_DISABLED_KERNELS=CPUWNA16LinearKernel gives it 4 bits, too. Where vLLM has no such kernel for the processor (one without
  AVX-512), which vLLM finds out when weights are loaded, that is set here.
  On a device VLLM_DISABLED_KERNELS=MacheteLinearKernel,MarlinLinearKernel and so on gives it 4 and 8 bits.
- gptq that vLLM's own configuration refuses (2 and 3 bits, on a CPU 8; zero points, gptq_v2): `LpqGptqConfig` claims it.
- compressed-tensors with experts of packed integers: `LpqCompressedTensorsConfig` claims it on a CPU; `--quantization lpq_compressed_tensors` elsewhere.
- `quant_method: lpq`: `LpqConfig`.
"""

from __future__ import annotations

import os

_registered = False
_FOUR_BITS = "CPUWNA16LinearKernel"


def _without_absent_kernels() -> None:
    """Takes vLLM's 4-bit kernel off its list where the library that it loaded has no such operation."""
    import torch
    import vllm._custom_ops  # noqa: F401 - loads that library

    if not hasattr(torch.ops._C, "cpu_gemm_wna16"):
        named = [name for name in os.environ.get("VLLM_DISABLED_KERNELS", "").split(",") if name and name != _FOUR_BITS]
        os.environ["VLLM_DISABLED_KERNELS"] = ",".join([*named, _FOUR_BITS])


def register() -> None:
    """Registers all of it with vLLM, once a process. On other platforms than the CPU and CUDA it does nothing."""
    global _registered
    from vllm.platforms import PlatformEnum, current_platform

    if _registered or not (current_platform.is_cpu() or current_platform.is_cuda()):
        return
    from vllm.model_executor.kernels.linear import register_linear_kernel
    from vllm.model_executor.layers.quantization import register_quantization_config

    from .artifacts import LpqConfig
    from .compressed import LpqCompressedTensorsConfig
    from .gptq import LpqGptqConfig
    from .kernel import LpqLinearKernel
    from .refusal import print_sentences

    print_sentences()
    if current_platform.is_cpu():
        _without_absent_kernels()
    register_linear_kernel(LpqLinearKernel, PlatformEnum.CPU if current_platform.is_cpu() else PlatformEnum.CUDA, "mp")
    register_quantization_config(LpqGptqConfig.NAME)(LpqGptqConfig)
    register_quantization_config(LpqCompressedTensorsConfig.NAME)(LpqCompressedTensorsConfig)
    register_quantization_config(LpqConfig.NAME)(LpqConfig)
    _registered = True
