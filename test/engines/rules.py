"""What vLLM's loaders make of directories, without a device: its own classes read config.json and say which scheme each linear gets.

`rules.py DIR...` prints one line of JSON a directory: {"dir", "problems": [...], "schemes": {linear: what it is taken for}, "cache": the dtype of
the cache that it asks for}. Linears are those of the directory's tensors; fused ones are asked for by vLLM's names.
"""

import json
import sys

import torch
import vllm.model_executor.parameter as parameter
from safetensors import safe_open

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
DTYPES = {"U8": "uint8", "F8_E4M3": "float8_e4m3fn", "F32": "float32"}

# One rank: nothing is set up.
parameter.get_tensor_model_parallel_rank = lambda: 0
parameter.get_tensor_model_parallel_world_size = lambda: 1


def tensors_of(path):
    with safe_open(f"{path}/model.safetensors", "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}
        return {name: (DTYPES.get(part.get_dtype(), part.get_dtype()), part.get_shape()) for name, part in slices.items()}


def cache_scales(tensors, result):
    """Every scale of the cache goes to a parameter of an Attention."""
    from vllm.model_executor.model_loader.weight_utils import maybe_remap_kv_scale_name

    layers = {name.split(".self_attn.")[0] for name in tensors if ".self_attn." in name}
    wanted = {f"{layer}.self_attn.attn.{side}_scale" for layer in layers for side in "kv"}
    found = set()
    for name, (dtype, shape) in tensors.items():
        if not name.endswith(("k_scale", "v_scale")):
            continue
        found.add(maybe_remap_kv_scale_name(name, dict.fromkeys(wanted)))
        if dtype != "float32" or shape not in ([], [1]):
            result["problems"].append(f"{name} is {dtype} {shape}")
    if found and found != wanted:
        result["problems"].append(f"scales of the cache: {sorted(map(str, found ^ wanted))[:4]}")


def modelopt(path, tensors, result):
    from vllm.model_executor.layers.quantization import modelopt as mo

    with open(f"{path}/config.json") as file:
        inline = json.load(file)["quantization_config"]
    with open(f"{path}/hf_quant_config.json") as file:
        beside = json.load(file)
    classes = (mo.ModelOptFp8Config, mo.ModelOptNvFp4Config, mo.ModelOptMxFp8Config, mo.ModelOptMixedPrecisionConfig)
    named = [each for each in classes if each.override_quantization_method(inline, None)] or [mo.ModelOptFp8Config]
    linears = sorted(name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale"))
    for stated in (inline, beside):
        config = named[0].from_config(stated)
        config.packed_modules_mapping = FUSED
        method = getattr(config, "kv_cache_quant_method", None) or getattr(config, "kv_cache_quant_algo", None)
        result["cache"] = method
        for linear in linears:
            if config.is_layer_excluded(linear):
                result["problems"].append(f"{linear} is left out")
            mixed = hasattr(config, "_resolve_quant_algo")
            algo = config._resolve_quant_algo(linear) if mixed else config.quant_method
            if result["schemes"].setdefault(linear, algo) != algo:
                result["problems"].append(f"{linear} is {algo} in one file only")
            base, last = linear.rsplit(".", 1)
            for fused, parts in FUSED.items():
                if mixed and last in parts and config._resolve_quant_algo(f"{base}.{fused}") != algo:
                    result["problems"].append(f"{base}.{fused} is not {algo}")
            shapes_of(mo, config, algo, linear, tensors, result)
        for name in ("lm_head", *(n.removesuffix(".weight") for n in tensors if n.endswith("k_proj.weight"))):
            if f"{name}.weight_scale" not in tensors and not config.is_layer_excluded(name):
                result["problems"].append(f"{name} is plain and not left out")


def shapes_of(mo, config, algo, linear, tensors, result):
    """The parameters that vLLM would make for a linear, against its tensors."""
    spec, context, _ = mo.resolve(algo, getattr(config, mo.LINEAR_ALGOS[algo][1], config), linear)
    n, k = tensors[f"{linear}.weight"][1]
    layer = torch.nn.Module()
    shapes = mo.Shapes([n], 2 * k if tensors[f"{linear}.weight"][0] == "uint8" else k, torch.bfloat16)
    mo.SCHEME_FOR[spec.weight].create_weights(layer, mo.WEIGHT, context, shapes, lambda *_: None)
    if spec.activation is not None:
        mo.SCHEME_FOR[spec.activation].create_weights(layer, mo.ACT, context, shapes, lambda *_: None)
    wanted = {name: (str(p.dtype).removeprefix("torch."), list(p.shape)) for name, p in layer.named_parameters()}
    found = {name[len(linear) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{linear}.")}
    for side in ("k", "v"):
        found.pop(f"{side}_scale", None)  # of the cache
    if {name: (d, s or [1]) for name, (d, s) in found.items()} != wanted:
        result["problems"].append(f"{linear}: {found}, not {wanted}")


def compressed(path, tensors, result):
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors as ct

    with open(f"{path}/config.json") as file:
        config = ct.CompressedTensorsConfig.from_config(json.load(file)["quantization_config"])
    ct.CompressedTensorsKVCacheMethod(config)
    if config.kv_cache_scheme is not None:
        result["cache"] = "FP8"
    for name, scheme in config.target_scheme_map.items():
        weights, inputs = scheme["weights"], scheme["input_activations"]
        rules = {
            "NVFP4 with activations": config._is_nvfp4_format(weights) and config._is_nvfp4_format(inputs),
            "NVFP4": config._is_nvfp4_format(weights) and inputs is None,
            "MXFP8": config._is_mxfp8(weights),
            "4 bits with FP8 activations": config._is_fp8_w4a8(weights, inputs),
            "static FP8": config._is_fp8_w8a8(weights, inputs) and not inputs.dynamic,
            "FP8": config._is_fp8_w8a8(weights, inputs) and inputs.dynamic,
            "integers": config._is_wNa16_group_channel(weights, inputs) and scheme["format"] == "pack-quantized",
        }
        result["schemes"][name] = next((each for each, holds in rules.items() if holds), None)


def gptq(path, tensors, result):
    """The rule that vLLM takes for a fused linear is that of each of its parts."""
    from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig
    from vllm.model_executor.layers.quantization.utils.gptq_utils import get_dynamic_override

    with open(f"{path}/config.json") as file:
        config = AutoGPTQConfig.from_config(json.load(file)["quantization_config"])
    names = {name.rpartition(".")[0] for name in tensors if name.endswith((".qweight", "_proj.weight"))}
    for name in sorted(names):
        override = get_dynamic_override(config, name)
        if (override is False) == (f"{name}.qweight" in tensors):
            result["problems"].append(f"{name}: {override}")
        bits = None if override is False else get_dynamic_override(config, name, "bits", config.weight_bits)
        result["schemes"][name] = bits
        asked = [f"{name.rsplit('.', 1)[0]}.{fused}" for fused, parts in FUSED.items() if name.rsplit(".", 1)[1] in parts]
        if ".experts." in name:
            asked = [name.split(".experts.")[0] + ".experts"]
        for each in asked:
            if get_dynamic_override(config, each) != override:
                result["problems"].append(f"{each}: {get_dynamic_override(config, each)}, and {name}: {override}")


def experts(path, ranks, result):
    """A rank of vLLM finds the experts that are placed on it in files without those of others."""
    from vllm.model_executor.model_loader.ep_weight_filter import compute_local_expert_ids, parse_expert_id

    with open(f"{path}/model.safetensors.index.json") as file:
        files = json.load(file)["weight_map"]
    ids = {name: parse_expert_id(name) for name in files}
    count = max(each for each in ids.values() if each is not None) + 1
    for rank in range(ranks):
        local = compute_local_expert_ids(count, ranks, rank)
        own = {files[name] for name, each in ids.items() if each in local}
        beside = {each for name, each in ids.items() if files[name] in own} - local
        if not own or beside:
            result["problems"].append(f"rank {rank}: {sorted(own)} hold {beside}, too")


def main(paths):
    for path in paths:
        result = {"dir": path, "problems": [], "schemes": {}, "cache": None}
        try:
            with open(f"{path}/lpq.json") as file:
                ranks = json.load(file).get("expertRanks")
            if ranks:
                experts(path, ranks, result)
                result["schemes"] = {"ranks": ranks}
                print(json.dumps(result), flush=True)
                continue
            tensors = tensors_of(path)
            with open(f"{path}/config.json") as file:
                method = json.load(file)["quantization_config"]["quant_method"]
            {"modelopt": modelopt, "compressed-tensors": compressed, "gptq": gptq}[method](path, tensors, result)
            cache_scales(tensors, result)
        except Exception as error:
            result["problems"].append(f"{type(error).__name__}: {str(error)[:600]}")
        print(json.dumps(result), flush=True)


main(sys.argv[1:])
