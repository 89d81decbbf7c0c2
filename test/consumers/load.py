"""Loads directories as their readers do, and compares every weight with what lpq's verifier decodes.

`load.py CASES` reads CASES/cases.json, a list of {"name", "how", "dtype"}: CASES/NAME is the directory, CASES/NAME.expected.safetensors
holds NAME.weight of every quantized linear in f32 (and of the rest), CASES/NAME.logits.safetensors the logits of ids. Prints one
line of JSON a case: {"name", "problems": [...], "weights": how many were compared, "relative": the largest difference of a weight}.
`how`: "config" (transformers' AutoConfig alone), "transformers" (from_pretrained, with compressed-tensors), "gguf" (gguf-py),
"single_experts" (DIRECTORY with a name for each expert, which its class does not read), "conv1d" (GPT-2 in compressed-tensors, whose linears
are not found).
With "source", the unquantized directory, and CASES/NAME.calibration.safetensors, calibrated scales are compared, too: "scales", "scale".
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

IDS = torch.arange(3, 35).reshape(1, 32)
LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def config(path, result, dtype=None):
    """transformers validates types strictly, compressed-tensors forbids unknown keys."""
    found = AutoConfig.from_pretrained(path)
    with open(f"{path}/config.json") as file:
        quantization = json.load(file).get("quantization_config", {})
    if quantization.get("quant_method") != "compressed-tensors":
        return found
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.utils.match import match_name

    read = QuantizationConfig.model_validate(quantization)
    for name, group in read.config_groups.items():
        if group.format is None:
            result["problems"].append(f"{name} has no format")
        # vLLM's head is of the class ParallelLMHead: only its name can match.
        if "lm_head" not in read.ignore and not any(match_name("lm_head", target) for target in group.targets):
            result["problems"].append(f"lm_head is neither ignored nor named by {name}")
    return found


def compare(result, name, got, expected):
    got, expected = got.detach().float(), expected.float()
    if got.shape != expected.shape:
        result["problems"].append(f"{name} is {list(got.shape)}, not {list(expected.shape)}")
        return
    far = (got - expected).abs() / expected.abs().clamp(min=1e-6)
    result["relative"] = max(result["relative"], far.max().item())
    result["weights"] += 1


def ranges(path, result, source, read):
    """The scales that the reader holds, against the largest magnitudes that hooks see in the unquantized model."""
    from transformers.cache_utils import DynamicCache

    ids = load_file(f"{path}.calibration.safetensors")["ids"].long()
    plain = getattr(hf, AutoConfig.from_pretrained(source).architectures[0]).from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    )
    largest, squares = {}, {}

    def see(name, value):
        largest[name] = max(largest.get(name, 0.0), value.detach().abs().max().item())
        squares[name] = squares.get(name, 0.0) + (value.detach().double() ** 2).flatten(0, -2).sum(0)

    for name, module in plain.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs, name=name: see(name, inputs[0]))
    update = DynamicCache.update

    def watched(self, keys, values, layer, *rest, **more):
        see(f"{layer}.k", keys)
        see(f"{layer}.v", values)
        return update(self, keys, values, layer, *rest, **more)

    DynamicCache.update = watched
    try:
        with torch.no_grad():
            plain(ids, past_key_values=DynamicCache())
    finally:
        DynamicCache.update = update
    result["scale"], result["scales"] = 0.0, 0
    for name, value in {**dict(read.named_parameters()), **dict(read.named_buffers())}.items():
        module, _, last = name.rpartition(".")
        if last in ("k_scale", "v_scale"):
            expected = largest[f"{module.split('.')[2]}.{last[0]}"] / 448
        elif last == "input_scale":
            expected = largest[module] / 448
        elif last == "input_global_scale":
            expected = 448 * 6 / largest[module]
        else:
            continue
        result["scale"] = max(result["scale"], abs(value.float().item() / expected - 1))
        result["scales"] += 1
    if os.path.exists(f"{path}.imatrix.gguf"):
        importance(f"{path}.imatrix.gguf", result, squares, ids.numel())


def importance(file, result, squares, tokens):
    """llama-imatrix' file, as gguf-py reads it, against sums of squares by hooks."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    if bytes(reader.fields["general.type"].parts[-1]).decode() != "imatrix":
        result["problems"].append("it is no importance matrix by its general.type")
    found = {tensor.name: numpy.array(tensor.data) for tensor in reader.tensors}
    result["squares"] = 0.0
    for name, values in found.items():
        stem, _, last = name.rpartition(".")
        if last == "counts":
            if values.flatten().tolist() != [tokens]:
                result["problems"].append(f"{name} is {values}, not {tokens}")
            continue
        _, layer, part, _ = stem.split(".")
        expected = squares[f"model.layers.{layer}.{LINEARS[part]}"].numpy()
        result["squares"] = max(result["squares"], float(numpy.abs(values.flatten() / expected - 1).max()))


def transformers(path, result, dtype):
    found = config(path, result, dtype)
    model, told = getattr(hf, found.architectures[0]).from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation="eager", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if told[kind]:
            result["problems"].append(f"{kind}: {sorted(map(str, told[kind]))[:3]}")
    with torch.no_grad():
        logits = model(IDS).logits.float()
    expected = load_file(f"{path}.logits.safetensors")["logits"].float()
    result["logits"] = (logits - expected).abs().max().item()
    weights = load_file(f"{path}.expected.safetensors")
    have = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in weights.items():
        if name in have:
            compare(result, name, have.pop(name), value)
    # Experts of a block in one tensor: gate and up of each, one below the other.
    for name, value in have.items():
        prefix, _, last = name.rpartition(".")
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last)
        if parts is None or not prefix.endswith("mlp.experts"):
            continue
        source = prefix
        if f"{prefix}.0.{parts[0]}.weight" not in weights:
            source = prefix.replace("mlp.experts", "block_sparse_moe.experts")
            parts = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}[last]
        for expert in range(value.shape[0]):
            whole = torch.cat([weights[f"{source}.{expert}.{part}.weight"] for part in parts])
            compare(result, f"{name}[{expert}]", value[expert], whole)
    return model


def single_experts(path, result, dtype):
    """The checkpoint with experts.E.gate_proj, up_proj and down_proj in the place of stacked ones: whatever they hold, the class has its own."""
    kind = getattr(hf, config(path, result, dtype).architectures[0])
    weights, renamed = load_file(f"{path}/model.safetensors"), {}
    for name, value in weights.items():
        prefix, _, last = name.rpartition(".experts.")
        for expert in range(value.shape[0]) if prefix and last in ("gate_up_proj", "down_proj") else ():
            parts = {"gate_proj": value[expert, :, ::2], "up_proj": value[expert, :, 1::2]} if last == "gate_up_proj" else {"down_proj": value[expert]}
            renamed.update((f"{prefix}.experts.{expert}.{part}.weight", each.t().contiguous()) for part, each in parts.items())
        if not prefix or last not in ("gate_up_proj", "down_proj"):
            renamed[name] = value
    if renamed.keys() == weights.keys():
        result["problems"].append("the checkpoint has no stacked experts")
    save_file(renamed, f"{path}/model.safetensors", metadata={"format": "pt"})
    model, told = kind.from_pretrained(path, output_loading_info=True)
    stacked = [name for name, _ in model.named_parameters() if name.endswith((".experts.gate_up_proj", ".experts.down_proj"))]
    absent = [name for name in stacked if name not in told["missing_keys"]]
    if not stacked or absent:
        result["problems"].append(f"transformers finds {absent} in experts that are named one by one: lpq need not refuse to write them")


def conv1d(path, result, dtype):
    """GPT-2's linears as compressed-tensors itself packs them, by groups of either class, [N, K] as of a Linear or [K, N] as GPT-2 stores them."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    plain, weights = AutoConfig.from_pretrained(path).to_dict(), load_file(f"{path}/model.safetensors")
    linears = [name for name in weights if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))]
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    for target in ("Linear", "Conv1D"):
        for turned in (True, False):
            stored = {name: value for name, value in weights.items() if name not in linears}
            for name in linears:
                groups = (weights[name].t() if turned else weights[name]).float().unflatten(1, (-1, 32))
                scale = (groups.abs().amax(-1) / 7).bfloat16()
                codes = (groups / scale.float()[..., None]).round().clamp(-8, 7).to(torch.int8).flatten(1)
                stored[f"{name}_packed"], stored[f"{name}_scale"] = pack_to_int32(codes, 4).contiguous(), scale
                stored[f"{name}_shape"] = torch.tensor(codes.shape)
            save_file(stored, f"{path}/model.safetensors", metadata={"format": "pt"})
            group = {"format": "pack-quantized", "targets": [target], "weights": scheme}
            said = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed"}
            with open(f"{path}/config.json", "w") as file:
                json.dump({**plain, "quantization_config": {**said, "ignore": ["lm_head"], "config_groups": {"group_0": group}}}, file)
            _, told = hf.GPT2LMHeadModel.from_pretrained(path, output_loading_info=True)
            if not linears or told["missing_keys"] != set(linears):
                result["problems"].append(f"{target}, turned {turned}: transformers misses {sorted(told['missing_keys'])} of {linears}")


def gguf(path, result, dtype):
    from gguf import GGUFReader, dequantize

    with open(f"{path}/config.json") as file:
        sizes = json.load(file)
    heads = {"attn_q": sizes["num_attention_heads"], "attn_k": sizes["num_key_value_heads"]}
    expected = load_file(f"{path}.expected.safetensors")
    for tensor in GGUFReader(f"{path}/model.gguf").tensors:
        block, layer, *rest = tensor.name.split(".")
        if block != "blk" or rest[0] not in LINEARS:
            continue
        value = torch.from_numpy(numpy.array(dequantize(tensor.data, tensor.tensor_type)))
        if rest[0] in heads:
            # llama.cpp rotates neighbours, transformers halves of a head.
            n, k = value.shape
            value = value.reshape(heads[rest[0]], n // heads[rest[0]] // 2, 2, k).swapaxes(1, 2).reshape(n, k)
        compare(result, tensor.name, value, expected[f"model.layers.{layer}.{LINEARS[rest[0]]}.weight"])


def main(cases):
    with open(f"{cases}/cases.json") as file:
        listed = json.load(file)
    for case in listed:
        result = {"name": case["name"], "problems": [], "weights": 0, "relative": 0.0}
        try:
            read = {"config": config, "transformers": transformers, "gguf": gguf, "single_experts": single_experts, "conv1d": conv1d}[case["how"]]
            model = read(f"{cases}/{case['name']}", result, case["dtype"])
            if "source" in case:
                ranges(f"{cases}/{case['name']}", result, case["source"], model)
        except Exception as error:
            result["problems"].append(f"{type(error).__name__}: {str(error)[:600]}")
        print(json.dumps(result), flush=True)


main(sys.argv[1])
