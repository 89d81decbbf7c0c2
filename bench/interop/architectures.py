"""Compares the logits that lpq computes of 4-bit checkpoints of every architecture with transformers' of the decoded weights.

    node bench/interop/architectures.mjs OUT        quantizes and packs test/fixtures/architectures (needs lpq)
    python bench/interop/architectures.py OUT       needs torch and transformers 5; no network, no GPU

Weights are decoded by loaders.py, written as a plain checkpoint in fp32, and loaded by AutoModelForCausalLM or, of models of more than
text, AutoModelForImageTextToText. Ends with 1 when any logits
differ by more than 1e-4.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import loaders

FIXTURES = Path(__file__).resolve().parents[2] / "test" / "fixtures" / "architectures"
BOUND = 1e-4


def plain(place, source):
    """The decoded weights under the names of the source; how many modules were decoded."""
    with open(os.path.join(place, "config.json")) as file:
        config = json.load(file)
    weights, modules = loaders.decoded(place, config)
    stored = load_file(source / "model.safetensors")
    # Biases of quantized modules, which the decoder leaves out.
    packed = load_file(os.path.join(place, "model.safetensors"))
    weights = {**{name: packed[name].float() for name in packed if name.endswith(".bias")}, **weights}
    whole = {name: weights[name] if name in weights else fused(name, weights) for name in stored}
    return {name: tensor.contiguous() for name, tensor in {**whole, **unread(config, weights)}.items()}, modules


# Tensors of all experts: where each expert's linears are, which of them it holds, and whether as [in, out].
FUSED = {
    "experts.gate_up_proj": ("experts", ("gate_proj", "up_proj"), True),
    "experts.down_proj": ("experts", ("down_proj",), True),
    "input_linear.weight": ("experts", ("gate_proj", "up_proj"), False),
    "output_linear.weight": ("experts", ("down_proj",), False),
}


def fused(name, weights):
    """The tensor of all experts of that name, of linears of their own."""
    end = next(end for end in FUSED if name.endswith(end))
    inside, parts, turned = FUSED[end]
    module = name.removesuffix(end) + inside
    count = next(e for e in range(1 << 16) if f"{module}.{e}.{parts[0]}.weight" not in weights)
    each = [torch.cat([weights[f"{module}.{e}.{part}.weight"] for part in parts]) for e in range(count)]
    return torch.stack([one.T if turned else one for one in each])


def unread(config, weights):
    """Weights that transformers has for experts which hand on what they read."""
    idle = config.get("zero_expert_num") or 0
    count = config.get("n_routed_experts", 0)
    return {
        f"model.layers.{layer}.mlp.experts.{e}.{part}.weight": torch.zeros(config["expert_ffn_hidden_size"], config["hidden_size"])
        for layer in range(config["num_layers"] if idle else 0)
        for e in range(count, count + idle)
        for part in ("gate_proj", "up_proj")
    }


def logits_of(weights, source, ids):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text((source / "config.json").read_text())
        save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        text = "vision_config" not in json.loads((source / "config.json").read_text())
        loader = AutoModelForCausalLM if text else AutoModelForImageTextToText
        model = loader.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        return loaders.logits_of(model, ids)


def main():
    root, worst = Path(sys.argv[1]), 0.0
    for place in sorted(path for path in root.iterdir() if path.is_dir()):
        source = FIXTURES / place.name.rsplit(".", 1)[0]
        ids = load_file(source / "golden.safetensors")["input_ids"].long()
        want = load_file(f"{place}.logits.safetensors")["logits"]
        weights, modules = plain(place, source)
        difference = float((logits_of(weights, source, ids) - want).abs().max())
        worst = max(worst, difference)
        print(f"{place.name:28s} {modules:3d} modules, max difference {difference:.1e}", flush=True)
    print(f"worst {worst:.1e}, {'ok' if worst <= BOUND else 'NOT ok'}")
    sys.exit(0 if worst <= BOUND else 1)


torch.set_num_threads(1)
if __name__ == "__main__":
    main()
