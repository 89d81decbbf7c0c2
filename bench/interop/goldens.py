"""Tiny random checkpoints of many shapes, each with the logits that transformers computes: more goldens for test/src/model.

    python bench/interop/goldens.py OUT [NAME ...]      needs torch and transformers 5; no network, no GPU
    LPQ_GOLDENS=OUT node scripts/test.mjs model/golden  compares the graph with each of them (max |difference| 1e-4)

golden.safetensors: input_ids I32 [2, 40], logits F32 [2, 40, V], fp32 with eager attention; weights are bf16-representable. Those under
IN_DOUBLES are computed in fp64, because fp32 is further from it than the bound.
"""

import json
import math
import os
import re
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

COMMON = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
MLA = dict(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, num_key_value_heads=4,
           n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=1, n_group=4, topk_group=2,
           first_k_dense_replace=1)
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=24, linear_value_head_dim=12)
KDA = dict(linear_num_heads=3, linear_head_dim=20, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=6, v_head_dim=12,
           num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=2, n_group=1,
           topk_group=1, mlp_layer_types=["dense", "sparse", "sparse"])
MAMBA2 = dict(mamba_num_heads=8, mamba_head_dim=10, n_groups=2, ssm_state_size=12, head_dim=16, n_routed_experts=6, num_experts_per_tok=2,
              moe_intermediate_size=32, moe_shared_expert_intermediate_size=48)
GRANITE4 = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=12, num_local_experts=5, num_experts_per_tok=2, shared_intermediate_size=40,
                attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=2.0)
FALCON_H1 = dict(mamba_n_heads=4, mamba_d_head=10, mamba_d_ssm=40, mamba_d_state=12, head_dim=24, embedding_multiplier=2.0, key_multiplier=0.7,
                 attention_out_multiplier=0.9, ssm_in_multiplier=1.1, ssm_out_multiplier=0.8, lm_head_multiplier=0.5, mlp_multipliers=[0.8, 1.2],
                 ssm_multipliers=[0.9, 0.8, 1.1, 1.2, 0.7])
JAMBA = dict(mamba_d_state=10, mamba_dt_rank=6, num_experts=5, num_experts_per_tok=2, attn_layer_period=3, attn_layer_offset=1,
             expert_layer_period=2, expert_layer_offset=0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def rope(kind, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **more))


def longrope(pairs, original=32, **more):
    return dict(rope_parameters=dict(rope_type="longrope", rope_theta=10000.0,
                                     short_factor=[1.0 + 0.05 * i for i in range(pairs)],
                                     long_factor=[1.5 + 0.3 * i for i in range(pairs)],
                                     original_max_position_embeddings=original, **more),
                original_max_position_embeddings=original)


def full_and_sliding(count, every):
    return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)]


# name -> (class of the model, keyword arguments of its configuration over COMMON)
VARIANTS = {
    "llama-linear": ("Llama", rope("linear", factor=3.0)),
    "llama-dynamic": ("Llama", dict(max_position_embeddings=24, **rope("dynamic", factor=2.0))),
    "llama-dynamic-short": ("Llama", rope("dynamic", factor=2.0)),
    "llama-yarn": ("Llama", dict(rope_parameters=YARN)),
    "llama-yarn-all": ("Llama", dict(rope_parameters=dict(YARN, beta_fast=16.0, beta_slow=2.0, attention_factor=1.3, truncate=False))),
    "llama-yarn-mscale": ("Llama", dict(rope_parameters=dict(YARN, mscale=0.8, mscale_all_dim=0.5))),
    "llama-llama3": ("Llama", dict(rope_parameters=LLAMA3)),
    "llama-longrope": ("Llama", longrope(8, factor=4.0)),
    "llama-longrope-short": ("Llama", longrope(8, original=64, factor=2.0)),
    "llama-partial": ("Llama", dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    "llama-mha": ("Llama", dict(num_key_value_heads=4)),
    "llama-mqa": ("Llama", dict(num_key_value_heads=1)),
    "llama-head-dim": ("Llama", dict(head_dim=40, attention_bias=True)),
    "llama-mlp-bias": ("Llama", dict(mlp_bias=True, tie_word_embeddings=True)),
    "llama-gelu": ("Llama", dict(hidden_act="gelu")),
    "llama-gelu-tanh": ("Llama", dict(hidden_act="gelu_pytorch_tanh")),
    "llama-relu2": ("Llama", dict(hidden_act="relu2", rms_norm_eps=1e-3)),
    "llama-quick-gelu": ("Llama", dict(hidden_act="quick_gelu")),
    "mistral-full": ("Mistral", dict(sliding_window=None, head_dim=24)),
    "mistral-default-window": ("Mistral", dict()),
    "mistral-window-yarn": ("Mistral", dict(sliding_window=7, rope_parameters=YARN)),
    "mixtral-window": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=3, sliding_window=9, tie_word_embeddings=True)),
    "mixtral-one": ("Mixtral", dict(num_local_experts=3, num_experts_per_tok=1, head_dim=24)),
    "qwen2-window": ("Qwen2", dict(use_sliding_window=True, sliding_window=6, max_window_layers=1)),
    "qwen2-layer-types": ("Qwen2", dict(use_sliding_window=True, sliding_window=6,
                                        layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "qwen2-yarn-untied": ("Qwen2", dict(tie_word_embeddings=False, rope_parameters=YARN)),
    "qwen2-moe-sparse-step": ("Qwen2Moe", dict(MOE, decoder_sparse_step=2, shared_expert_intermediate_size=48, num_hidden_layers=4)),
    "qwen2-moe-mlp-only": ("Qwen2Moe", dict(MOE, mlp_only_layers=[1], shared_expert_intermediate_size=40, norm_topk_prob=True)),
    "qwen2-moe-window": ("Qwen2Moe", dict(MOE, shared_expert_intermediate_size=40, use_sliding_window=True, sliding_window=6,
                                          max_window_layers=2, num_hidden_layers=4, qkv_bias=False)),
    "qwen3-bias": ("Qwen3", dict(attention_bias=True, head_dim=16, num_key_value_heads=1)),
    "qwen3-window": ("Qwen3", dict(use_sliding_window=True, sliding_window=5, max_window_layers=2, head_dim=32, tie_word_embeddings=True)),
    "qwen3-moe-raw": ("Qwen3Moe", dict(MOE, head_dim=24, norm_topk_prob=False, decoder_sparse_step=1)),
    "qwen3-moe-steps": ("Qwen3Moe", dict(MOE, head_dim=24, norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[3], num_hidden_layers=4)),
    "qwen3-moe-window": ("Qwen3Moe", dict(MOE, head_dim=16, use_sliding_window=True, sliding_window=6, attention_bias=True)),
    "gemma2-plain": ("Gemma2", dict(head_dim=24, attn_logit_softcapping=None, final_logit_softcapping=None, sliding_window=8)),
    "gemma2-caps": ("Gemma2", dict(head_dim=16, attn_logit_softcapping=5.0, final_logit_softcapping=3.0, sliding_window=5, query_pre_attn_scalar=40)),
    "gemma2-layer-types": ("Gemma2", dict(head_dim=16, sliding_window=5, layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    "gemma2-bias": ("Gemma2", dict(head_dim=16, attention_bias=True, tie_word_embeddings=False)),
    "gemma3-pattern": ("Gemma3Text", dict(head_dim=16, sliding_window=6, num_hidden_layers=7, query_pre_attn_scalar=20,
                                          layer_types=full_and_sliding(7, 3))),
    "gemma3-caps": ("Gemma3Text", dict(head_dim=32, sliding_window=8, attn_logit_softcapping=4.0, final_logit_softcapping=2.5, attention_bias=True)),
    "gemma3-rope": ("Gemma3Text", dict(head_dim=16, sliding_window=6, num_hidden_layers=4, layer_types=full_and_sliding(4, 2),
                                       rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=5000.0),
                                                            full_attention=dict(rope_type="linear", rope_theta=200000.0, factor=8.0)))),
    "gemma3-multimodal": ("Gemma3", dict()),
    "gemma4-defaults": ("Gemma4Text", dict(head_dim=16, num_hidden_layers=7, global_head_dim=24, hidden_size_per_layer_input=12, vocab_size_per_layer_input=96,
                                           sliding_window=7)),
    "gemma4-last-full": ("Gemma4Text", dict(head_dim=24, num_hidden_layers=4, hidden_size_per_layer_input=0, global_head_dim=16, final_logit_softcapping=3.0,
                                            layer_types=full_and_sliding(4, 3), sliding_window=5, attention_bias=True)),
    "gemma4-shared": ("Gemma4Text", dict(head_dim=16, num_hidden_layers=6, layer_types=full_and_sliding(6, 2), global_head_dim=32, num_kv_shared_layers=3,
                                         hidden_size_per_layer_input=8, vocab_size_per_layer_input=96, use_double_wide_mlp=True, sliding_window=6)),
    "gemma4-keys-as-values": ("Gemma4Text", dict(head_dim=16, num_hidden_layers=4, layer_types=full_and_sliding(4, 2), global_head_dim=32, attention_k_eq_v=True,
                                                 num_global_key_value_heads=1, hidden_size_per_layer_input=0, tie_word_embeddings=False, sliding_window=6,
                                                 rope_parameters=dict(full_attention=dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.5, factor=2.0),
                                                                      sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
    "gemma4-experts": ("Gemma4Text", dict(head_dim=16, num_hidden_layers=3, layer_types=full_and_sliding(3, 3), global_head_dim=32, attention_k_eq_v=True,
                                          enable_moe_block=True, num_experts=6, top_k_experts=3, moe_intermediate_size=40, hidden_size_per_layer_input=8,
                                          vocab_size_per_layer_input=96, num_kv_shared_layers=0, sliding_window=6)),
    "gemma4-by-block": ("Gemma4Text", dict(head_dim=16, num_hidden_layers=4, layer_types=full_and_sliding(4, 2), hidden_size_per_layer_input=0, sliding_window=6,
                                           per_layer_config={1: dict(head_dim=32, num_key_value_heads=1), 3: dict(head_dim=32, num_key_value_heads=1)})),
    "gemma3n-defaults": ("Gemma3nText", dict(head_dim=16, num_hidden_layers=12, layer_types=full_and_sliding(12, 4), num_kv_shared_layers=4, laurel_rank=6,
                                             hidden_size_per_layer_input=8, vocab_size_per_layer_input=96, sliding_window=6)),
    "gemma3n-two": ("Gemma3nText", dict(head_dim=24, num_hidden_layers=5, num_kv_shared_layers=0, laurel_rank=3, altup_num_inputs=2, altup_correct_scale=False,
                                        hidden_size_per_layer_input=8, vocab_size_per_layer_input=96, sliding_window=6, intermediate_size=[96, 64, 96, 80, 96],
                                        activation_sparsity_pattern=[0.5, 0.0, 0.9, 0.2, 0.0], tie_word_embeddings=False, final_logit_softcapping=4.0)),
    "phi3-plain": ("Phi3", dict(sliding_window=9)),
    "phi3-longrope": ("Phi3", longrope(8)),
    "phi3-longrope-short": ("Phi3", longrope(8, original=64)),
    "phi3-partial": ("Phi3", dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75), tie_word_embeddings=True)),
    "olmo2-bias": ("Olmo2", dict(attention_bias=True, num_key_value_heads=4)),
    "olmo2-yarn": ("Olmo2", dict(rope_parameters=YARN, num_key_value_heads=1)),
    "granite-multipliers": ("Granite", dict(embedding_multiplier=6.0, attention_multiplier=0.11, residual_multiplier=0.3, logits_scaling=4.0,
                                            attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "granite-plain": ("Granite", dict()),
    "gpt-neox-serial": ("GPTNeoX", dict(use_parallel_residual=False, attention_bias=False)),
    "gpt-neox-rotary": ("GPTNeoX", dict(tie_word_embeddings=True, hidden_act="gelu_new",
                                        rope_parameters=dict(rope_type="default", rope_theta=5000.0, partial_rotary_factor=1.0))),
    "gpt-neox-linear": ("GPTNeoX", dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0, partial_rotary_factor=0.5))),
    "opt-post-norm": ("OPT", dict(do_layer_norm_before=False, word_embed_proj_dim=32)),
    "opt-no-bias": ("OPT", dict(enable_bias=False, layer_norm_elementwise_affine=False, activation_function="gelu")),
    "opt-untied": ("OPT", dict(tie_word_embeddings=False, _remove_final_layer_norm=True)),
    "gpt2-inverse-layer": ("GPT2LMHead", dict(scale_attn_by_inverse_layer_idx=True, n_inner=80, activation_function="gelu")),
    "gpt2-unscaled": ("GPT2LMHead", dict(scale_attn_weights=False, tie_word_embeddings=False, reorder_and_upcast_attn=True)),
    "starcoder2-window": ("Starcoder2", dict(sliding_window=7, use_bias=False, tie_word_embeddings=False)),
    "starcoder2-gelu": ("Starcoder2", dict(hidden_act="gelu", num_key_value_heads=1, rope_parameters=dict(rope_type="linear", rope_theta=1000.0, factor=2.0))),
    "cohere-qk-norm": ("Cohere", dict(use_qk_norm=True, logit_scale=0.5, attention_bias=True)),
    "cohere-untied": ("Cohere", dict(tie_word_embeddings=False, num_key_value_heads=4, logit_scale=1.5)),
    "glm4-bias": ("Glm4", dict(attention_bias=True, head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    "glm4-whole": ("Glm4", dict(head_dim=24, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0))),
    "deepseek-no-lora": ("DeepseekV3", dict(MLA, q_lora_rank=None)),
    "deepseek-one-group": ("DeepseekV3", dict(MLA, n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0)),
    "deepseek-all-sparse": ("DeepseekV3", dict(MLA, first_k_dense_replace=0, n_shared_experts=2, attention_bias=True)),
    "deepseek-all-dense": ("DeepseekV3", dict(MLA, first_k_dense_replace=3)),
    "deepseek-yarn": ("DeepseekV3", dict(MLA, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    "deepseek-yarn-mscale": ("DeepseekV3", dict(MLA, rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=1.2))),
    "deepseek-half": ("DeepseekV3", dict(MLA, rope_interleave=False)),
    "deepseek-v2-greedy": ("DeepseekV2", dict(MLA, n_group=1, topk_group=1, topk_method="greedy", head_dim=8)),
    "deepseek-v2-groups": ("DeepseekV2", dict(MLA, q_lora_rank=None, topk_method="group_limited_greedy", head_dim=8, routed_scaling_factor=2.0)),
    "cohere2-pattern": ("Cohere2", dict(sliding_window=6, num_hidden_layers=5, head_dim=16, layer_types=full_and_sliding(5, 4))),
    "cohere2-bias": ("Cohere2", dict(sliding_window=6, attention_bias=True, head_dim=24, logit_scale=0.25)),
    "gpt-oss-types": ("GptOss", dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=6, num_hidden_layers=4,
                                     layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention"],
                                     rope_parameters=dict(YARN, truncate=False, beta_fast=32.0, beta_slow=1.0))),
    "gpt-oss-plain": ("GptOss", dict(head_dim=24, num_local_experts=3, num_experts_per_tok=1, sliding_window=5, attention_bias=False,
                                     tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "olmo-hybrid": ("OlmoHybrid", dict(DELTA, layer_types=["linear_attention", "linear_attention", "full_attention"])),
    "olmo-hybrid-positive": ("OlmoHybrid", dict(DELTA, linear_num_key_heads=4, linear_allow_neg_eigval=False, linear_conv_kernel_dim=3,
                                                layer_types=["full_attention", "linear_attention", "full_attention"], tie_word_embeddings=True)),
    "kimi-linear": ("KimiLinear", dict(KDA, layer_types=["linear_attention", "full_attention", "linear_attention"])),
    "kimi-linear-groups": ("KimiLinear", dict(KDA, q_lora_rank=24, n_group=4, topk_group=2, norm_topk_prob=False, linear_head_dim=12,
                                              layer_types=["full_attention", "linear_attention", "linear_attention"])),
    "nemotron-h": ("NemotronH", dict(MAMBA2, hybrid_override_pattern="MM*E-M")),
    "nemotron-h-biases": ("NemotronH", dict(MAMBA2, layers_block_type=["moe", "linear_attention", "full_attention"], n_groups=4, use_bias=True,
                                            use_conv_bias=False, time_step_min=0.3, n_group=2, topk_group=1, routed_scaling_factor=2.5)),
    "nemotron-h-latent": ("NemotronH", dict(MAMBA2, hybrid_override_pattern="EM*E", moe_latent_size=24)),
    "granite-hybrid": ("GraniteMoeHybrid", dict(GRANITE4, layer_types=["linear_attention", "full_attention", "linear_attention"])),
    "granite-hybrid-biases": ("GraniteMoeHybrid", dict(GRANITE4, mamba_proj_bias=True, mamba_n_groups=2, mamba_d_conv=2, mamba_expand=1,
                                                       mamba_d_head="auto", position_embedding_type="rope", time_step_limit=[0.2, 0.9],
                                                       layer_types=["full_attention", "linear_attention", "linear_attention"])),
    "falcon-h1": ("FalconH1", dict(FALCON_H1)),
    "falcon-h1-gate-first": ("FalconH1", dict(FALCON_H1, mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_n_groups=4, mamba_d_ssm=None,
                                              mamba_d_head="auto", projectors_bias=True, mlp_bias=True, attention_in_multiplier=1.3)),
    "falcon-h1-plain": ("FalconH1", dict(FALCON_H1, mlp_multipliers=None, ssm_multipliers=None, mamba_conv_bias=False, mamba_d_ssm=40)),
    "jamba": ("Jamba", dict(JAMBA)),
    "jamba-dense": ("Jamba", dict(JAMBA, num_experts=1, mamba_dt_rank="auto", mamba_proj_bias=True, mamba_conv_bias=False, mamba_expand=3,
                                  mamba_d_conv=3, attn_layer_period=3, attn_layer_offset=2)),
}


SPARSE = dict(moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1)
KINDS = ["full_attention", "sliding_attention", "full_attention"]
VARIANTS.update({
    "olmo3-types": ("Olmo3", dict(num_hidden_layers=5, sliding_window=6)),
    "olmo3-yarn": ("Olmo3", dict(layer_types=KINDS, sliding_window=6, attention_bias=True,
                                 rope_parameters=dict(full_attention=YARN, sliding_attention=dict(rope_type="default", rope_theta=2000.0)))),
    "smollm3-interval": ("SmolLM3", dict(no_rope_layer_interval=2)),
    "smollm3-window": ("SmolLM3", dict(use_sliding_window=True, sliding_window=6, no_rope_layers=[1, 0, 1], tie_word_embeddings=False,
                                       attention_bias=True, mlp_bias=True)),
    "seed-oss-plain": ("SeedOss", dict(attention_bias=False, mlp_bias=True, head_dim=24)),
    "seed-oss-quotient": ("SeedOss", dict(head_dim=None, tie_word_embeddings=True)),
    "arcee-yarn": ("Arcee", dict(attention_bias=True, head_dim=24, rope_parameters=YARN)),
    "ministral3-default": ("Ministral3", dict(head_dim=16)),
    "ministral3-window": ("Ministral3", dict(head_dim=24, sliding_window=9, rope_parameters=dict(YARN, original_max_position_embeddings=8, llama_4_scaling_beta=0.3))),
    "gemma-untied": ("Gemma", dict(head_dim=24, num_key_value_heads=4, tie_word_embeddings=False, attention_bias=True, hidden_act="gelu")),
    "exaone4-whole": ("Exaone4", dict(sliding_window=None, layer_types=["full_attention"] * 3)),
    "exaone4-pattern": ("Exaone4", dict(sliding_window=6, sliding_window_pattern=2, num_hidden_layers=5, head_dim=24, rope_parameters=LLAMA3)),
    "hunyuan-plain": ("HunYuanDenseV1", dict(attention_bias=True, head_dim=24, tie_word_embeddings=True)),
    "hunyuan-alpha": ("HunYuanDenseV1", dict(head_dim=16, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=1000.0, factor=1.0))),
    "ernie45-plain": ("Ernie4_5", dict(tie_word_embeddings=False, head_dim=24)),
    "apertus-default": ("Apertus", dict(attention_bias=True)),
    "apertus-silu": ("Apertus", dict(hidden_act="silu", head_dim=24, rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "nemotron-whole": ("Nemotron", dict(attention_bias=False, mlp_bias=True, head_dim=24, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0))),
    "stablelm-serial": ("StableLm", dict(use_qkv_bias=True, qk_layernorm=True)),
    "stablelm-parallel": ("StableLm", dict(use_parallel_residual=True, num_key_value_heads=4, tie_word_embeddings=True)),
    "olmoe-normed": ("Olmoe", dict(num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, attention_bias=True, num_key_value_heads=4)),
    "glm4-moe-groups": ("Glm4Moe", dict(SPARSE, head_dim=16, n_group=4, topk_group=2, first_k_dense_replace=2, n_shared_experts=2, routed_scaling_factor=1.5)),
    "glm4-moe-raw": ("Glm4Moe", dict(SPARSE, head_dim=24, use_qk_norm=True, first_k_dense_replace=0, norm_topk_prob=False)),
    "glm4-moe-lite-types": ("Glm4MoeLite", dict(MLA, mlp_layer_types=["sparse", "dense", "sparse"], rope_interleave=False)),
    "minimax-m2-whole": ("MiniMaxM2", dict(num_local_experts=6, num_experts_per_tok=2, head_dim=24)),
    "dots1-window": ("Dots1", dict(SPARSE, max_window_layers=1, sliding_window=6, n_group=2, topk_group=1, first_k_dense_replace=1)),
    "ernie45-moe-interval": ("Ernie4_5_Moe", dict(num_hidden_layers=6, moe_num_experts=6, moe_k=2, moe_intermediate_size=32, moe_layer_interval=2,
                                                  moe_layer_start_index=2, moe_layer_end_index=4, moe_num_shared_experts=0)),
    "ernie45-moe-shared": ("Ernie4_5_Moe", dict(moe_num_experts=6, moe_k=3, moe_intermediate_size=32, tie_word_embeddings=False)),
    "hunyuan-moe-list": ("HunYuanMoEV1", dict(num_experts=6, moe_topk=[1, 2, 3], head_dim=16, attention_bias=True)),
    "phimoe-longrope": ("Phimoe", dict(num_local_experts=6, num_experts_per_tok=2, router_jitter_noise=0.2, sliding_window=9,
                                       **{key: dict(value, short_mscale=1.1, long_mscale=1.3) if key == "rope_parameters" else value
                                          for key, value in longrope(8, original=64).items()})),
    "hy-v3-types": ("HYV3", dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, head_dim=16, num_shared_experts=2,
                                 mlp_layer_types=["sparse", "dense", "sparse"])),
    "exaone-moe-groups": ("ExaoneMoe", dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_group=4, topk_group=2,
                                            sliding_window=6, sliding_window_pattern=2, first_k_dense_replace=2)),
    "mimo-v2-flash-types": ("MiMoV2Flash", dict(num_hidden_layers=7, num_key_value_heads=1, head_dim=24, v_head_dim=16, sliding_window=6,
                                                n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, attention_value_scale=None,
                                                attention_bias=True)),
})


# Sizes that fill no register and no tile.
ODD = dict(vocab_size=97, hidden_size=60, intermediate_size=52, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3)
ODD_MOE = dict(ODD, num_experts=5, num_local_experts=5, num_experts_per_tok=3, moe_intermediate_size=20, shared_expert_intermediate_size=24)
VARIANTS.update({
    **{f"{kind.lower()}-odd": (kind, ODD) for kind in ["Llama", "Mistral", "Qwen2", "Olmo2", "Granite", "Starcoder2", "Cohere", "Phi3"]},
    **{f"{kind.lower()}-odd": (kind, dict(ODD, head_dim=12)) for kind in ["Qwen3", "Gemma2", "Gemma3Text", "Glm4"]},
    **{f"{kind.lower()}-odd": (kind, dict(ODD_MOE, head_dim=12)) for kind in ["Mixtral", "Qwen2Moe", "Qwen3Moe", "GptOss"]},
    "gptneox-odd": ("GPTNeoX", {key: ODD[key] for key in ODD if key != "num_key_value_heads"}),
    "opt-odd": ("OPT", dict(vocab_size=97, hidden_size=60, ffn_dim=50, num_attention_heads=6, num_hidden_layers=2, word_embed_proj_dim=36)),
    "gpt2-odd": ("GPT2LMHead", dict(vocab_size=97, n_embd=60, n_head=6, n_inner=50, n_layer=1)),
    "deepseek-odd": ("DeepseekV3", dict(ODD, **dict(MLA, num_key_value_heads=6, q_lora_rank=14, kv_lora_rank=18, qk_nope_head_dim=10,
                                                    qk_rope_head_dim=6, v_head_dim=14, n_routed_experts=6, n_group=3, moe_intermediate_size=20))),
})

# Configurations as files from before transformers 5 spell them; transformers itself reads them back.
LEGACY = ["llama-linear", "llama-dynamic", "llama-yarn-all", "llama-yarn-mscale", "llama-llama3", "phi3-longrope", "phi3-partial",
          "gemma3-pattern", "gemma3-rope", "gpt-neox-rotary", "glm4-bias", "deepseek-yarn-mscale", "qwen2-window",
          "gpt-oss-types", "cohere2-pattern"]


def older(config):
    """config.json in the older spelling: rope_theta, rope_scaling, patterns instead of lists."""
    config = dict(config)
    parameters = dict(config.pop("rope_parameters", None) or {})
    if "full_attention" in parameters:
        local, parameters = dict(parameters["sliding_attention"]), dict(parameters["full_attention"])
        config["rope_local_base_freq"] = local["rope_theta"]
        every = config.pop("layer_types").index("full_attention") + 1
        config["sliding_window_pattern"] = every
    elif config["model_type"] == "cohere2":
        config["sliding_window_pattern"] = config.pop("layer_types").index("full_attention") + 1
    elif config["model_type"] == "qwen2":
        config.pop("layer_types", None)
    theta = parameters.pop("rope_theta", None)
    if theta is not None:
        config["rotary_emb_base" if config["model_type"] == "gpt_neox" else "rope_theta"] = theta
    share = parameters.pop("partial_rotary_factor", None)
    if share is not None:
        config["rotary_pct" if config["model_type"] == "gpt_neox" else "partial_rotary_factor"] = share
    if parameters.get("rope_type", "default") != "default":
        # Gemma 3 never had the oldest key, and transformers does not look at it there.
        if not config["model_type"].startswith("gemma3"):
            parameters["type"] = parameters.pop("rope_type")
        config["rope_scaling"] = parameters
    return config


def make_older(name, out):
    place, base = os.path.join(out, name + "-older"), os.path.join(out, name)
    shutil.copytree(base, place, dirs_exist_ok=True)
    with open(os.path.join(base, "config.json")) as file:
        config = older(json.load(file))
    with open(os.path.join(place, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, attn_implementation="eager").eval()
    golden = load_file(os.path.join(place, "golden.safetensors"))
    with torch.no_grad():
        logits = model(input_ids=golden["input_ids"].long()).logits.float()
    save_file({"input_ids": golden["input_ids"], "logits": logits.contiguous()}, os.path.join(place, "golden.safetensors"))
    return float((logits - golden["logits"]).abs().max())


def build(kind, more):
    if kind == "Gemma3":
        text = dict(COMMON, head_dim=16, sliding_window=6, query_pre_attn_scalar=16)
        vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
        config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1, image_token_index=90,
                                           boi_token_index=91, eoi_token_index=92)
        return transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager")
    settings = dict(COMMON)
    if kind == "OPT":
        settings["ffn_dim"] = settings.pop("intermediate_size")
        settings.pop("num_key_value_heads")
    if kind == "GPT2LMHead":
        settings = dict(vocab_size=96, n_embd=64, n_layer=3, n_head=4, n_positions=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    if kind == "GPTNeoX":
        settings.pop("num_key_value_heads")
    settings.update(more)
    if "rope_parameters" in settings:
        settings["rope_parameters"] = dict(settings["rope_parameters"])
    stem = "GPT2" if kind == "GPT2LMHead" else kind
    config = getattr(transformers, (kind if kind.endswith("Text") else stem) + "Config")(**settings)
    name = {"GPT2LMHead": "GPT2LMHeadModel"}.get(kind, kind.removesuffix("Text") + "ForCausalLM")
    return getattr(transformers, name)._from_config(config, attn_implementation="eager")


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + [
            (n, b) for n, b in model.named_buffers() if "correction_bias" in n or "layer_scalar" in n
        ]:
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in name.lower() or ".ln_" in name:
                plus = re.match("gemma[23]?for|nemotronfor", type(model).__name__.lower()) or name.endswith("bias")
                value = 0.2 * noise + (0.0 if plus else 1.0)
                if "q_norm" in name and re.match("gemma(3n|4)", type(model).__name__.lower()):
                    value = value / len(value)  # scores that no factor makes small
            elif tensor.dim() < 2:
                value = 0.3 * noise
            else:
                value = noise * (1.2 / math.sqrt(tensor.shape[-1] if tensor.dim() == 2 else tensor.shape[-2]))
            tensor.copy_(value.to(torch.bfloat16).to(tensor.dtype))


# Twelve blocks of AltUp, whose streams predict and correct each other: transformers' fp32 is 1.3e-4 from its own fp64, lpq's 9e-5.
IN_DOUBLES = {"gemma3n-defaults"}


def make(name, out, seed):
    kind, more = VARIANTS[name]
    torch.manual_seed(seed)
    model = build(kind, more).to(torch.float32).eval()
    randomise(model, seed)
    ids = (torch.arange(80, dtype=torch.int64).reshape(2, 40) * 37 + 11 * seed) % 83 + 3
    if name in IN_DOUBLES:
        model = model.double()
    with torch.no_grad():
        logits = model(input_ids=ids).logits.float()
        # A sequence's logits are those of it alone: dynamic scalings look at the batch's length only.
        alone = model(input_ids=ids[1:]).logits.float()
    assert torch.isfinite(logits).all() and (logits[1:] - alone).abs().max() < 1e-4, name
    place = os.path.join(out, name)
    model.to(torch.bfloat16).save_pretrained(place)
    save_file({"input_ids": ids.to(torch.int32), "logits": logits.contiguous()}, os.path.join(place, "golden.safetensors"))
    return float(logits.abs().max())


def main():
    out, *names = sys.argv[1:]
    failed = {}
    for seed, name in enumerate(VARIANTS):
        if names and name not in names:
            continue
        try:
            print(f"{name:26s} largest logit {make(name, out, seed):8.3f}", flush=True)
        except Exception as error:  # noqa: BLE001  a version of transformers may lack one; the others still count
            failed[name] = f"{type(error).__name__}: {error}"
            print(f"{name:26s} FAILED {failed[name][:300]}", flush=True)
    for name in LEGACY:
        if names and name not in names:
            continue
        try:
            print(f"{name + '-older':26s} from the newer spelling {make_older(name, out):.1e}", flush=True)
        except Exception as error:  # noqa: BLE001
            failed[name + "-older"] = f"{type(error).__name__}: {error}"
            print(f"{name + '-older':26s} FAILED {failed[name + '-older'][:300]}", flush=True)
    with open(os.path.join(out, "made.json"), "w") as file:
        json.dump({"transformers": transformers.__version__, "torch": torch.__version__, "failed": failed}, file, indent=1)


if __name__ == "__main__":
    main()
