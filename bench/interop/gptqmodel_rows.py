"""Quantizes a model with GPTQModel: columns by activation, static groups, the scale search (mse) on and off. One directory a case.

python gptqmodel_rows.py MODEL WINDOWS.json OUT CASE...      CASE: W4-128-sym, W2-64-asym, ...; WINDOWS: lists of token ids

Environment: scripts/engines.mjs builds it (build/engines/gptqmodel). Writes OUT/CASE-mse0 and OUT/CASE-mse2.4, and a line of JSON with the
seconds of each.
"""

import json
import os
import re
import sys
import time

os.environ.update(HF_HUB_OFFLINE="1", GPTQMODEL_CPU_WORKERS="2")

import torch
from gptqmodel import GPTQModel, QuantizeConfig

# The exponent of the error that the original code's search sums; 0 turns it off.
NORMS = (0.0, 2.4)


def main(path: str, windows: str, out: str, *cases: str) -> None:
    with open(windows) as file:
        ids = json.load(file)
    data = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in ids]
    for case in cases:
        bits, group, grid = re.fullmatch(r"W(\d)-(\d+)-(sym|asym)", case).groups()
        for norm in NORMS:
            target = os.path.join(out, f"{case}-mse{norm:g}")
            if os.path.exists(target):
                continue
            config = QuantizeConfig(
                bits=int(bits), group_size=int(group), sym=grid == "sym", desc_act=True, static_groups=True, act_group_aware=False, mse=norm
            )
            started = time.time()
            model = GPTQModel.load(path, config, device="cpu", dtype=torch.float32)
            model.quantize(data, batch_size=8)
            model.save(target)
            print(json.dumps({"case": case, "mse": norm, "windows": len(ids), "seconds": time.time() - started}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
