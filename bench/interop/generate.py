"""A process of bench/generate/peers.ts: python generate.py DIR DTYPE THREADS PROMPT DECODE prints {"prompt", "decode"}, tokens a second.

The second of two runs, greedy, by transformers' own forward pass and cache, logits of the last token only.
"""

import json
import sys
import time

import torch
import transformers

directory, dtype, threads, prompt, decode = sys.argv[1:]
torch.set_num_threads(int(threads))
transformers.logging.set_verbosity_error()
model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()


@torch.inference_mode()
def prompt_seconds() -> float:
    ids = (torch.arange(int(prompt)) * 7919 % (model.config.vocab_size - 10) + 5)[None]
    started = time.perf_counter()
    model(ids, use_cache=True, logits_to_keep=1)
    return time.perf_counter() - started


@torch.inference_mode()
def decode_seconds() -> float:
    token, past = torch.tensor([[5]]), None
    started = time.perf_counter()
    for _ in range(int(decode)):
        out = model(token, past_key_values=past, use_cache=True)
        token, past = out.logits[:, -1:].argmax(-1), out.past_key_values
    return time.perf_counter() - started


prompt_seconds()
decode_seconds()
print(json.dumps({"prompt": int(prompt) / prompt_seconds(), "decode": int(decode) / decode_seconds()}))
