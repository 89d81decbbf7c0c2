"""Decodes the INT4 linears of a checkpoint with compressed-tensors' own code: `unpack_int4.py MODEL.safetensors OUT.safetensors`.

OUT has NAME.weight, f32 [N, K], of every NAME.weight_packed: codes of `unpack_from_int32`, times scales in f32, by its `dequantize`.
"""

import sys

import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import load_file, save_file

tensors = load_file(sys.argv[1])
args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
decoded = {}
for name, words in tensors.items():
    if not name.endswith(".weight_packed"):
        continue
    module = name.removesuffix("_packed").removesuffix(".weight")
    codes = unpack_from_int32(words, 4, torch.Size(tensors[f"{module}.weight_shape"].tolist()))
    scale = tensors[f"{module}.weight_scale"].float()
    decoded[f"{module}.weight"] = dequantize(codes, scale, args=args, dtype=torch.float32).contiguous()
save_file(decoded, sys.argv[2])
