"""llm-compressor's GPTQ, on a CUDA device where it sees one: python drive_llmcompressor.py MODEL SAMPLES OUT BITS GROUP. Its
defaults; symmetric. Prints {"seconds"}.
"""

import json
import sys
import time

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

path, samples, out, bits, group = sys.argv[1:]
with open(samples) as file:
    rows = json.load(file)
data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(ids) for ids in rows]})
started = time.perf_counter()
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
weights = {"num_bits": int(bits), "type": "int", "symmetric": True, "strategy": "group", "group_size": int(group)}
recipe = GPTQModifier(config_groups={"all": {"targets": ["Linear"], "weights": weights}}, ignore=["lm_head", "re:.*mlp.gate$"])
oneshot(
    model=model,
    processor=AutoTokenizer.from_pretrained(path),
    dataset=data,
    recipe=recipe,
    max_seq_length=max(map(len, rows)),
    num_calibration_samples=len(rows),
    shuffle_calibration_samples=False,
    output_dir=out,
)
print(json.dumps({"seconds": time.perf_counter() - started}))
