"""Compares the logits that lpq computes of 4-bit checkpoints of every architecture with transformers' of the decoded weights.

    node bench/interop/architectures.mjs OUT        quantizes and packs test/fixtures/architectures (needs lpq)
    python bench/interop/architectures.py OUT [JSON]  needs torch and transformers 5; no network, no GPU

Weights are decoded by loaders.py, written as a plain checkpoint in fp32 under the names and in the shapes of the source, and loaded by
AutoModelForCausalLM or, of models of more than text, AutoModelForImageTextToText. Writes JSON; ends with 1 when any logits differ by more
than 1e-4.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import transformers
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
    named = {**weights, "modules": {name.rsplit(".", 1)[0] for name in packed if name.rsplit(".", 1)[1] in loaders.LAST}}
    whole = {name: stored_as(name, config, named) for name in stored}
    return {name: tensor.contiguous() for name, tensor in {**whole, **unread(config, weights)}.items()}, modules


# Tensors of all experts, by their last part: which linears of each expert they hold, one below the other.
FUSED = {
    "experts.gate_up_proj": ("gate_proj", "up_proj"),
    "experts.down_proj": ("down_proj",),
    "input_linear.weight": ("gate_proj", "up_proj"),
    "output_linear.weight": ("down_proj",),
    "experts.gate_up_proj_bias": ("gate_proj", "up_proj"),
    "experts.down_proj_bias": ("down_proj",),
}
# Models that store them as [in, out], and those whose gate and up take turns; GPT-2 stores every linear so.
TURNED = {"llama4", "llama4_text", "qwen3_vl_moe", "gpt_oss"}
TURNS = {"gpt_oss"}
CONV1D = {"gpt2"}


def stored_as(name, config, weights):
    """A tensor as the source has it, of linears by their own names."""
    kind = config["model_type"]
    if name in weights:
        linear = name.endswith(".weight") and f"{name.removesuffix('.weight')}" in weights["modules"]
        return weights[name].T if kind in CONV1D and linear else weights[name]
    end = next(end for end in FUSED if name.endswith(end))
    last = "bias" if end.endswith("_bias") else "weight"
    module = name.removesuffix(end) + "experts"
    parts = FUSED[end]
    count = next(e for e in range(1 << 16) if f"{module}.{e}.{parts[0]}.{last}" not in weights)
    each = [[weights[f"{module}.{e}.{part}.{last}"] for part in parts] for e in range(count)]
    join = (lambda both: torch.stack(both, 1).flatten(0, 1)) if kind in TURNS else torch.cat
    whole = torch.stack([join(one) for one in each])
    return whole.transpose(1, 2) if kind in TURNED and last == "weight" else whole


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
    root, rows = Path(sys.argv[1]), []
    for place in sorted(path for path in root.iterdir() if path.is_dir()):
        source = FIXTURES / place.name.rsplit(".", 1)[0]
        ids = load_file(source / "golden.safetensors")["input_ids"].long()
        want = load_file(f"{place}.logits.safetensors")["logits"]
        weights, modules = plain(place, source)
        difference = float((logits_of(weights, source, ids) - want).abs().max())
        rows.append({"name": place.name, "modules": modules, "max": difference})
        print(f"{place.name:28s} {modules:3d} modules, max difference {difference:.1e}", flush=True)
    worst = max(row["max"] for row in rows)
    ok = worst <= BOUND
    print(f"worst {worst:.1e}, {'ok' if ok else 'NOT ok'}")
    if len(sys.argv) > 2:
        facts = {"transformers": transformers.__version__, "torch": torch.__version__, "bound": BOUND, "ok": ok, "worst": worst}
        Path(sys.argv[2]).write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    sys.exit(0 if ok else 1)


torch.set_num_threads(1)
if __name__ == "__main__":
    main()
