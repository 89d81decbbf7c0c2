"""Loads what lpq packed for other programs, and compares logits with lpq's own.

    node bench/interop/prepare.mjs OUT             packs tiny-llama for every target (once; needs lpq, no GPU)
    python bench/interop/loaders.py OUT [JSON]  needs torch and transformers; a GPU is used where there is one

Two ways for each directory. `loader`: AutoModelForCausalLM.from_pretrained of the directory itself, where the packages that
transformers asks for (compressed-tensors, gptqmodel, optimum, autoawq) are installed; else what it says is recorded. `decoder`:
the weights decoded by this file, which was written from the formats' descriptions and shares nothing with lpq, in
transformers' Llama. Prints a table, writes JSON, and ends with 1 when any logits differ by more than the bound.
"""

import importlib.metadata
import json
import os
import sys
import time

import torch
import transformers
from safetensors.torch import load_file

# fp32 on both sides: sums of up to 768 products in another order, and sines from other tables, through 4 blocks.
BOUND_FP32 = 1e-3
# A loader may unpack weights to fp16 or bf16 (8 bits of fraction): 2^-8 of logits up to 20, over 4 blocks.
BOUND_HALF = 0.4
# W8A8 rounds activations too, which lpq's logits do not: no rounding error but another function, so only gross mistakes show.
BOUND_ACTIVATIONS = 2.0

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def bits_of(words, dim):
    """Bits of I32 words along `dim`, least significant first, as one more stream of 0 and 1 along it."""
    words = words.to(torch.int64) & 0xFFFFFFFF
    moved = words.movedim(dim, -1)
    spread = (moved.unsqueeze(-1) >> torch.arange(32)) & 1
    return spread.flatten(-2).movedim(-1, dim)


def stream(words, dim, bits, count):
    """Codes of `bits` bits that lie one after another in the little-endian bitstream along `dim`."""
    flat = bits_of(words, dim).movedim(dim, -1)[..., : bits * count]
    codes = (flat.unflatten(-1, (count, bits)) << torch.arange(bits)).sum(-1)
    return codes.movedim(-1, dim)


def gptq(t, settings):
    bits, size = settings["bits"], settings["group_size"]
    k, n = t["g_idx"].shape[0], t["scales"].shape[1]
    codes = stream(t["qweight"], 0, bits, k)
    zeros = stream(t["qzeros"], 1, bits, n)
    if settings.get("checkpoint_format", "gptq") == "gptq":
        zeros = (zeros + 1) & (2**bits - 1)
    group = t["g_idx"].long()
    assert size == -1 or settings["desc_act"] or bool((group == torch.arange(k) // size).all())
    return (t["scales"].float()[group] * (codes - zeros[group])).T


def awq(t, settings):
    group = settings["group_size"]
    # Nibble i of a word is column 8 c + order[i].
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def unpack(words):
        nibbles = ((words.to(torch.int64) & 0xFFFFFFFF).unsqueeze(-1) >> (4 * torch.arange(8))) & 15
        out = torch.empty_like(nibbles)
        out[..., order] = nibbles
        return out.flatten(-2)

    rows = torch.arange(t["qweight"].shape[0]) // group
    return ((unpack(t["qweight"]) - unpack(t["qzeros"])[rows]) * t["scales"].float()[rows]).T


def compressed(t, scheme, form):
    weights = scheme["weights"]
    bits = weights["num_bits"]
    if form in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
        packed = t["weight_packed"]
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
        if form.startswith("nv"):
            scale = t["weight_scale"].float() / t["weight_global_scale"].float()
        else:
            scale = torch.exp2(t["weight_scale"].float() - 127)
        return E2M1[codes] * scale.repeat_interleave(codes.shape[1] // scale.shape[1], 1)
    scale = t["weight_scale"].float()
    if form in ("int-quantized", "float-quantized"):
        return t["weight"].float() * scale
    n, k = t["weight_shape"].tolist()
    codes = stream(t["weight_packed"], 1, bits, k) - 2 ** (bits - 1)
    zeros = torch.zeros_like(scale)
    if "weight_zero_point" in t:
        zeros = (stream(t["weight_zero_point"], 0, bits, n) - 2 ** (bits - 1)).float()
    width = k // scale.shape[1]
    return (codes - zeros.repeat_interleave(width, 1)) * scale.repeat_interleave(width, 1)


LAST = {"qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point",
        "weight_global_scale", "weight_g_idx"}


def canonical(t):
    """What lpq quantize writes of symmetric 4-bit integers: two's complement, two a byte, the lower index in the low nibble."""
    codes = torch.stack((t["codes"] & 15, t["codes"] >> 4), -1).flatten(-2).to(torch.int64)
    scales = t["scales"].float()
    signed = codes - 16 * (codes >= 8)
    return signed * scales.repeat_interleave(codes.shape[1] // scales.shape[1], dim=1)


def decoded(place, config):
    """Every weight in fp32, by name."""
    settings = config["quantization_config"]
    tensors = load_file(os.path.join(place, "model.safetensors"))
    modules = {name.rsplit(".", 1)[0] for name in tensors if name.rsplit(".", 1)[1] in LAST}
    out = {}
    for module in modules:
        parts = {name[len(module) + 1:]: tensor for name, tensor in tensors.items() if name.startswith(module + ".")}
        if settings["quant_method"] == "lpq":
            weight = canonical(parts)
        elif settings["quant_method"] == "gptq":
            weight = gptq(parts, settings)
        elif settings["quant_method"] == "awq":
            weight = awq(parts, settings)
        else:
            scheme = settings["config_groups"]["group_0"]
            weight = compressed(parts, scheme, scheme.get("format") or settings["format"])
        out[module + ".weight"] = weight.float()
    for name, tensor in tensors.items():
        if name.rsplit(".", 1)[0] not in modules:
            out[name] = tensor.float()
    return out, len(modules)


def logits_of(model, ids):
    device = next(model.parameters()).device
    with torch.no_grad():
        return model(input_ids=ids.to(device)).logits.float().cpu()


def by_decoder(place, ids):
    with open(os.path.join(place, "config.json")) as file:
        config = json.load(file)
    weights, modules = decoded(place, config)
    plain = transformers.LlamaConfig(**{key: value for key, value in config.items() if key != "quantization_config"})
    model = transformers.LlamaForCausalLM._from_config(plain, attn_implementation="eager").float().eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if plain.tie_word_embeddings:
        model.tie_weights()
        missing = [name for name in missing if name != "lm_head.weight"]
    assert not missing and not unexpected, (missing, unexpected)
    return logits_of(model.to(DEVICE), ids), modules


def by_loader(place, ids):
    try:
        return loaded(place, ids, torch.float32)
    except RuntimeError as error:
        # Some formats are unpacked to the checkpoint's own dtype whatever is asked for.
        if "same dtype" not in str(error):
            raise
        return loaded(place, ids, "auto")


def loaded(place, ids, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=dtype, attn_implementation="eager").to(DEVICE).eval()
    dtypes = {str(parameter.dtype) for parameter in model.parameters() if parameter.is_floating_point()}
    return logits_of(model, ids), sorted(dtypes)


def loader_bound(place, dtypes):
    with open(os.path.join(place, "config.json")) as file:
        groups = json.load(file)["quantization_config"].get("config_groups", {})
    if any(group.get("input_activations") for group in groups.values()):
        return BOUND_ACTIVATIONS
    return BOUND_FP32 if dtypes == ["torch.float32"] else BOUND_HALF


def compare(got, want):
    return {"max": float((got - want).abs().max()), "agree": float((got.argmax(-1) == want.argmax(-1)).float().mean())}


def main():
    root = sys.argv[1]
    ids = load_file(os.path.join(root, "ids.safetensors"))["input_ids"].long()
    rows, ok = [], True
    for name in sorted(os.listdir(root)):
        place = os.path.join(root, name)
        if not os.path.isdir(place):
            continue
        want = load_file(os.path.join(root, name + ".logits.safetensors"))["logits"]
        row, started = {"name": name}, time.time()
        got, row["modules"] = by_decoder(place, ids)
        row["decoder"] = compare(got, want)
        ok &= row["decoder"]["max"] <= BOUND_FP32
        try:
            got, row["dtypes"] = by_loader(place, ids)
            row["loader"] = dict(compare(got, want), bound=loader_bound(place, row["dtypes"]))
            ok &= row["loader"]["max"] <= row["loader"]["bound"]
        except Exception as error:  # noqa: BLE001  a package is missing, or the version does not take the format
            row["loader_error"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        row["seconds"] = round(time.time() - started, 2)
        rows.append(row)
        told = row.get("loader_error") or "{max:.1e} {agree:.3f} (bound {bound})".format(**row["loader"])
        print("{:28s} {:3d} modules  decoder {:.1e} {:.3f}  loader {}".format(name, row["modules"], row["decoder"]["max"],
                                                                             row["decoder"]["agree"], told), flush=True)
    packages = {}
    for package in ("compressed-tensors", "optimum", "gptqmodel"):
        try:
            packages[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            packages[package] = None
    result = {"transformers": transformers.__version__, **packages, "torch": torch.__version__, "cuda": torch.cuda.is_available(),
              "tokens": ids.numel(), "bound": BOUND_FP32, "ok": ok, "rows": rows}
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            json.dump(result, file, indent=1)
    print("ok" if ok else "NOT ok")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
