"""Compares the logits that lpq computes of 4-bit checkpoints of every architecture with transformers' of the decoded weights.

    node bench/interop/architectures.mjs OUT        quantizes and packs test/fixtures/architectures (needs lpq)
    python bench/interop/architectures.py OUT       needs torch and transformers 5; no network, no GPU

Weights are decoded by loaders.py, written as a plain checkpoint in fp32, and loaded by AutoModelForCausalLM. Ends with 1 when any logits
differ by more than 1e-4.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

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
    return {name: weights[name].contiguous() for name in stored}, modules


def logits_of(weights, source, ids):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text((source / "config.json").read_text())
        save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
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
