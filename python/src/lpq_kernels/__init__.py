"""Weights that `lpq pack` wrote, in PyTorch.

    from lpq_kernels import Artifact, Linear
    with Artifact("tiny-w4-sm90") as artifact:
        layer = Linear.from_artifact(artifact, "model.layers.0.mlp.down_proj")
    y = layer(x)                       # x [..., K] -> y [..., N], f32, f16 or bf16, on the CPU; device= and dtype= above: on a CUDA device

`lpq_kernels.transformers` opens whole artifacts with transformers' from_pretrained.
"""

from ._library import Error, version
from .artifact import Artifact, Module
from .kv import KvCache
from .latents import LatentCache
from .modules import Embedding, Linear
from .ops import operations, pack_codes, pack_module, pack_share, reserve

__all__ = [
    "Artifact",
    "Embedding",
    "Error",
    "KvCache",
    "LatentCache",
    "Linear",
    "Module",
    "operations",
    "pack_codes",
    "pack_module",
    "pack_share",
    "reserve",
    "version",
]
