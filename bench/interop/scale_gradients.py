"""Gradients of scales through a whole model (lpq quantize --tune-scales) against torch.autograd in double precision.

    node bench/interop/scale-gradients.mjs SOURCE QUANTIZED OUT.safetensors
    python bench/interop/scale_gradients.py SOURCE OUT.safetensors

SOURCE: a checkpoint of transformers; QUANTIZED: what lpq made of it. Prints a line of JSON: KL of both, and over modules the largest error of
a gradient's element over the largest element, the largest and the mean one. Needs torch, transformers and safetensors.
"""

import json
import sys

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM


def logits_of(model, weights: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    return torch.func.functional_call(model, weights, (ids,), {"use_cache": False}).logits


def main(source: str, made: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64, attn_implementation="eager").eval()
    with safe_open(made, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    ids = tensors.pop("ids").long()
    kl = tensors.pop("kl").item()
    names = [name.removesuffix(".gradient") for name in tensors if name.endswith(".gradient")]
    factors, weights = {}, {}
    for name in names:
        stored, gradient = tensors[f"{name}.weight"].double(), tensors[f"{name}.gradient"]
        factors[name] = torch.ones(gradient.shape, dtype=torch.float64, requires_grad=True)
        size = stored.shape[1] // gradient.shape[1]
        weights[f"{name}.weight"] = stored * factors[name].repeat_interleave(size, dim=1)
    with torch.no_grad():
        want = torch.log_softmax(logits_of(model, {}, ids), dim=-1)
    have = torch.log_softmax(logits_of(model, weights, ids), dim=-1)
    loss = (want.exp() * (want - have)).sum(-1).mean()
    loss.backward()
    errors = {}
    for name in names:
        exact = factors[name].grad
        errors[name] = ((tensors[f"{name}.gradient"].double() - exact).abs().max() / exact.abs().max()).item()
    worst = max(errors, key=errors.get)
    mean = sum(errors.values()) / len(errors)
    print(json.dumps({"kl": kl, "kl64": loss.item(), "modules": len(names), "mean": mean, "most": errors[worst], "worst": worst}))


main(*sys.argv[1:])
