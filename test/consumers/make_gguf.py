#!/usr/bin/env python3
"""Small checkpoints of test/fixtures/architectures as GGUF, with gguf-py's names, keys and writer.

usage: make_gguf.py ARCHITECTURES OUT      writes OUT/NAME.gguf for every one that llama.cpp has; needs gguf, numpy

What follows a dot of NAME is a spelling of older files: `whole` has kv_b_proj as it is.

Tensors are changed as llama.cpp's conversion scripts change them: q and k interleaved head by head where they rotate halves and
llama.cpp neighbours, 1 added to Gemma's norms, [K, N] turned over, q, k and v of GPT-NeoX sorted, experts stacked. Matrices stay in
BF16 and vectors become F32, so that nothing is rounded.
"""
import json, math, pathlib, re, sys

import gguf
import numpy as np

ARCH = gguf.MODEL_ARCH
NAMES = {
    "llama": ARCH.LLAMA, "llama-yarn-bias": ARCH.LLAMA, "llama3-rope": ARCH.LLAMA, "mixtral": ARCH.LLAMA, "qwen2": ARCH.QWEN2,
    "qwen2_moe": ARCH.QWEN2MOE, "qwen3": ARCH.QWEN3, "qwen3_moe": ARCH.QWEN3MOE, "gemma2": ARCH.GEMMA2, "gemma3_text": ARCH.GEMMA3,
    "phi3": ARCH.PHI3, "starcoder2": ARCH.STARCODER2, "gpt2": ARCH.GPT2, "gpt_neox": ARCH.GPTNEOX, "olmo2": ARCH.OLMO2,
    "granite": ARCH.GRANITE, "glm4": ARCH.GLM4, "cohere": ARCH.COMMAND_R, "gpt_oss": ARCH.GPT_OSS,
    "deepseek_v3": ARCH.DEEPSEEK2, "deepseek_v3.whole": ARCH.DEEPSEEK2,
}


def load(file):
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = raw[8 + size + begin : 8 + size + end]
        if entry["dtype"] == "BF16":
            bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
            yield name, bits.view(np.float32).reshape(entry["shape"])
        else:
            yield name, np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]).astype(np.float32).reshape(entry["shape"])


def permute(x, heads):
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def convert(kind, name, x, config):
    """(name as gguf-py's map knows it, tensor) pairs."""
    heads = config.get("num_attention_heads", config.get("n_head"))
    if kind in (ARCH.LLAMA, ARCH.GRANITE):
        if ".q_proj." in name:
            x = permute(x, heads)
        if ".k_proj." in name:
            x = permute(x, config["num_key_value_heads"])
    if kind in (ARCH.GEMMA2, ARCH.GEMMA3) and name.endswith("norm.weight"):
        x = x + np.float32(1)
    if kind == ARCH.GPT2 and x.ndim == 2 and re.search(r"\.c_(attn|proj|fc)\.weight$", name):
        x = x.T
    if kind == ARCH.GPTNEOX and "query_key_value" in name:
        size = x.shape[0] // heads // 3
        x = x.reshape(heads, 3, size, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    if kind == ARCH.DEEPSEEK2:
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if "kv_b_proj" in name and not config.get("whole"):
            # Keys, turned over, and values of each head in a tensor of their own.
            x = x.reshape(heads, -1, x.shape[-1])
            nope = config["qk_nope_head_dim"]
            return [(name.replace("kv_b", "k_b"), x[:, :nope].swapaxes(1, 2)), (name.replace("kv_b", "v_b"), x[:, nope:])]
    if kind == ARCH.GPT_OSS:
        if name.endswith("sinks"):
            name += ".weight"
        for part in ("gate_up_proj", "down_proj"):
            if f"experts.{part}" not in name:
                continue
            bias = name.endswith("_bias")
            x = x if bias else x.swapaxes(-1, -2)
            suffix = ".bias" if bias else ".weight"
            stem = name.removesuffix("_bias").removesuffix(part)
            if part == "down_proj":
                return [(stem + part + suffix, x)]
            return [(stem + "gate_proj" + suffix, x[:, ::2]), (stem + "up_proj" + suffix, x[:, 1::2])]
    return [(name, x)]


def stacked(pairs):
    """Experts of a block one behind the other, under the name that has no number."""
    stacks = {}
    for name, x in pairs:
        found = re.match(r"(.*\.experts)\.(\d+)\.(.*)$", name)
        if found:
            stacks.setdefault(f"{found[1]}.{found[3]}", {})[int(found[2])] = x
        else:
            yield name, x
    for name, parts in stacks.items():
        yield name, np.stack([parts[i] for i in range(len(parts))])


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return np.ascontiguousarray((bits >> 16).astype("<u2")).view(np.uint8).reshape(*x.shape[:-1], x.shape[-1] * 2)


def metadata(w, kind, name, c, tensors):
    get = lambda *keys: next((c[k] for k in keys if c.get(k) is not None), None)
    hidden, heads = get("hidden_size", "n_embd"), get("num_attention_heads", "n_head")
    head = get("head_dim") or hidden // heads
    mla = kind == ARCH.DEEPSEEK2
    rope = c.get("rope_parameters") or {}
    swa = rope.get("sliding_attention")
    rope = rope.get("full_attention", rope)
    w.add_context_length(get("max_position_embeddings", "n_positions"))
    w.add_embedding_length(hidden)
    w.add_block_count(get("num_hidden_layers", "n_layer"))
    w.add_feed_forward_length(get("intermediate_size", "n_inner") or 4 * hidden)
    w.add_head_count(heads)
    if mla:
        latent_metadata(w, c)
    elif kind not in (ARCH.GPT2, ARCH.GPTNEOX):
        w.add_head_count_kv(get("num_key_value_heads"))
    if get("head_dim") and not mla:
        w.add_key_length(head)
        w.add_value_length(head)
    if get("rms_norm_eps") is not None:
        w.add_layer_norm_rms_eps(get("rms_norm_eps"))
    if (eps := get("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon")) is not None:
        w.add_layer_norm_eps(eps)
    if rope:
        w.add_rope_freq_base(rope["rope_theta"])
        w.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1)))
    if swa and kind == ARCH.GEMMA3:
        w.add_rope_freq_base_swa(swa["rope_theta"])
    if rope.get("rope_type") in ("yarn", "linear"):
        w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        w.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope.get("rope_type") == "llama3":
        base, factor = rope["rope_theta"], rope["factor"]
        low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
        factors = []
        for i in range(0, head, 2):
            wavelength = 2 * math.pi * base ** (i / head)
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 if wavelength < old / high else factor if wavelength > old / low else 1 / ((1 - smooth) / factor + smooth))
        tensors["rope_freqs.weight"] = np.array(factors, np.float32)
    if experts := get("num_local_experts", "num_experts"):
        w.add_expert_count(experts)
        w.add_expert_used_count(c["num_experts_per_tok"])
    if get("moe_intermediate_size"):
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if get("shared_expert_intermediate_size"):
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if kind == ARCH.GPT_OSS:
        w.add_expert_feed_forward_length(c["intermediate_size"])
    if kind in (ARCH.GEMMA2, ARCH.GEMMA3, ARCH.GPT_OSS):
        w.add_sliding_window(c["sliding_window"])
    if kind == ARCH.GEMMA2:
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if kind == ARCH.PHI3:
        w.add_sliding_window(c["sliding_window"] or 0)
        w.add_rope_scaling_orig_ctx_len(c["original_max_position_embeddings"])
    if kind == ARCH.GPTNEOX:
        w.add_parallel_residual(c["use_parallel_residual"])
    if kind == ARCH.GRANITE:
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if kind == ARCH.COMMAND_R:
        w.add_logit_scale(c["logit_scale"])
        w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    w.add_tokenizer_model("none")


def latent_metadata(w, c):
    rotary, rank = c["qk_rope_head_dim"], c["kv_lora_rank"]
    keys = c["qk_nope_head_dim"] + rotary
    if c.get("whole"):
        w.add_head_count_kv(c["num_attention_heads"])
        w.add_key_length(keys)
        w.add_value_length(c["v_head_dim"])
    else:
        # Attention over the latent vector has one head of keys.
        w.add_head_count_kv(1)
        w.add_key_length(rank + rotary)
        w.add_value_length(rank)
        w.add_key_length_mla(keys)
        w.add_value_length_mla(c["v_head_dim"])
    w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(rank)
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_group_count(c["n_group"])
    w.add_expert_group_used_count(c["topk_group"])


def main(source, out):
    out.mkdir(parents=True, exist_ok=True)
    for name, kind in NAMES.items():
        stem, _, older = name.partition(".")
        config = json.loads((source / stem / "config.json").read_text())
        if older:
            config[older] = True
        layers = config.get("num_hidden_layers", config.get("n_layer"))
        names = gguf.get_tensor_name_map(kind, layers)
        tied = config.get("tie_word_embeddings")
        tensors = {}
        pairs = [pair for key, x in load(source / stem / "model.safetensors") for pair in convert(kind, key, x, config)]
        for key, x in stacked(pairs):
            if tied and key == "lm_head.weight" or key.endswith((".attn.bias", ".masked_bias", "rotary_emb.inv_freq")):
                continue
            # A gate with one output is a vector to llama.cpp.
            x = x.reshape(-1) if "shared_expert_gate" in key else x
            own = names.get_name(key, try_suffixes=(".weight", ".bias"))
            assert own is not None, (name, key)
            tensors[own] = x
        writer = gguf.GGUFWriter(out / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[kind])
        metadata(writer, kind, name, config, tensors)
        for own, x in tensors.items():
            if x.ndim > 1 and "norm" not in own and not own.endswith(".bias") and "ffn_gate_inp" not in own:
                writer.add_tensor(own, bf16(x), raw_dtype=gguf.GGMLQuantizationType.BF16)
            else:
                writer.add_tensor(own, np.ascontiguousarray(x, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
