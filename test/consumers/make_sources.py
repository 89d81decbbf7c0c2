"""Small random checkpoints, saved by transformers: `make_sources.py OUT` makes OUT/NAME for each of them.

Their config.json is as transformers writes it, with floats that are whole numbers: a strict reader refuses them as integers.
"""

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = dict(
    hidden_size=128,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=2048,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
SOURCES = {
    "llama": ("llama", dict(tie_word_embeddings=False, dtype="bfloat16")),
    "gemma2": ("gemma2", dict(attn_logit_softcapping=50.0, final_logit_softcapping=30.0, query_pre_attn_scalar=32)),
    # Latent attention has a key and value for every query head, whatever num_key_value_heads says; transformers divides by it, to 1.
    "deepseek_v3": (
        "deepseek_v3",
        dict(
            num_key_value_heads=3,
            head_dim=16,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            v_head_dim=32,
            q_lora_rank=64,
            kv_lora_rank=64,
            moe_intermediate_size=64,
            first_k_dense_replace=1,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
        ),
    ),
    "mixtral": ("mixtral", dict(num_local_experts=4, router_jitter_noise=0.0)),
}

for name, (kind, own) in SOURCES.items():
    torch.manual_seed(7)
    config = AutoConfig.for_model(kind, **{**SMALL, **own})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    if own.get("dtype") == "bfloat16":
        model = model.to(torch.bfloat16)
    model.save_pretrained(f"{sys.argv[1]}/{name}")
    print(name, flush=True)
