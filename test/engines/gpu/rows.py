"""The cells as drive.py runs them, in order: what matters most first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ORDER = ("cost", "standard", "plugin", "speed", "transformers")

SPEED = {"hidden": 4096, "intermediate": 14336, "heads": 32, "kv_heads": 8, "layers": 8, "vocab": 32000, "batches": [1, 16, 64, 256], "tokens": [16, 112]}
"""Blocks of Llama-3-8B; eight of them load four times as fast, and a block's time is what kernels differ in."""
SMALL = {"hidden": 256, "intermediate": 768, "heads": 4, "kv_heads": 2, "layers": 2, "vocab": 512, "batches": [1, 2], "tokens": [2, 6]}


def rows(prepared: Path, device: str, small: bool, kernels: str) -> list[dict[str, Any]]:
    made = []
    for cell in json.loads((prepared / "cells.json").read_text())["cells"]:
        transformers = cell["group"] == "transformers"
        env = {"VLLM_DISABLED_KERNELS": kernels} if cell["plugin"] else {}
        # Processes of their own: ranks, and experts, for which vLLM makes groups with the first model of a process only.
        if cell["ranks"] > 1 or "experts" in cell["name"]:
            env = {**env, "LPQ_CELL": f"{cell['ranks']} ranks, {'experts' in cell['name']}"}
        worker = "transformers" if transformers else "vllm"
        directory = str((prepared / cell["directory"]).resolve())
        made.append({**cell, "directory": directory, "plugin": cell["plugin"] or transformers, "env": env, "worker": worker})
    shape = SMALL if small else SPEED
    others = set(kernels.split(","))
    # Over one checkpoint: vLLM's choice on a Hopper card, its Marlin, and the plugin's.
    sides = [("Machete", "MacheteLinearKernel"), ("Marlin", "MarlinLinearKernel"), ("lpq", None)]
    for name, on in [("the CPU's own", "CPUWNA16LinearKernel"), ("lpq", None)] if device == "cpu" else sides:
        env = {"VLLM_DISABLED_KERNELS": ",".join(sorted(others - {on}))}
        made.append({"name": f"speed: {name}", "group": "speed", "worker": "speed", "env": env, "plugin": on is None, "ranks": 1, "shape": shape})
    for name, worker in (("C++ entry to launch", "entry"), ("torch.ops beside F.linear", "call")):
        made.append({"name": f"cost: {name}", "group": "cost", "worker": worker, "env": {}, "plugin": True, "ranks": 1, "small": small})
    return sorted(made, key=lambda cell: ORDER.index(cell["group"]))
