"""AutoRound on a CPU, or the device of LPQ_PEER_DEVICE: python drive_autoround.py MODEL SAMPLES OUT BITS GROUP STEPS. Symmetric,
4 sequences a step, on a device 4096 tokens and its extended algorithm, compiled. Prints {"seconds"}.
"""

import json
import os
import sys
import time

import torch
from auto_round import AutoRound
from transformers import AutoModelForCausalLM, AutoTokenizer

path, samples, out, bits, group, steps = sys.argv[1:]
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
with open(samples) as file:
    ids = torch.tensor(json.load(file))
data = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in ids]
on_device = os.environ.get("LPQ_PEER_DEVICE") == "cuda"
started = time.perf_counter()
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
rounding = AutoRound(
    model,
    AutoTokenizer.from_pretrained(path),
    bits=int(bits),
    group_size=int(group),
    sym=True,
    iters=int(steps),
    batch_size=max(1, 4096 // ids.shape[1]) if on_device else 4,
    seqlen=ids.shape[1],
    nsamples=len(ids),
    dataset=data,
    seed=42,
    device_map="cuda:0" if on_device else "cpu",
    enable_torch_compile=on_device,
    **({"enable_alg_ext": True} if on_device else {}),
)
rounding.quantize_and_save(out, format="auto_round")
seconds = time.perf_counter() - started
# It writes a folder of its own below, named after the model.
for made in [entry.path for entry in os.scandir(out) if entry.is_dir()]:
    for name in os.listdir(made):
        os.replace(os.path.join(made, name), os.path.join(out, name))
    os.rmdir(made)
print(json.dumps({"seconds": seconds}))
