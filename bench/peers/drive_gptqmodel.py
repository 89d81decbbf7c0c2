"""GPTQModel on a CPU, or the device of LPQ_PEER_DEVICE: python drive_gptqmodel.py MODEL SAMPLES OUT BITS GROUP. Its defaults;
symmetric. Prints {"seconds"} without imports.
"""

import json
import os
import sys
import time

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", os.environ.get("OMP_NUM_THREADS", "2"))

from gptqmodel import GPTQModel, QuantizeConfig

model, samples, out, bits, group = sys.argv[1:]
with open(samples) as file:
    data = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in json.load(file)]
device = "cuda:0" if os.environ.get("LPQ_PEER_DEVICE") == "cuda" else "cpu"
started = time.perf_counter()
loaded = GPTQModel.load(model, QuantizeConfig(bits=int(bits), group_size=int(group), sym=True, device=device), trust_remote_code=False)
loaded.quantize(data, batch_size=4)
loaded.save(out)
print(json.dumps({"seconds": time.perf_counter() - started}))
