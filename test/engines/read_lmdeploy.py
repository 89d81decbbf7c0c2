"""Reads packed linears by LMDeploy's own code, without its engine: `read_lmdeploy.py CASES RESULTS`.

CASES is a list of {"name", "format", "directory", "group"}: a class of lmdeploy/turbomind/weight_format.py by its name, and a directory beside
which DIRECTORY.expected.safetensors holds NAME.weight, f32 [N, K]. RESULTS has a name's {"accepted", "modules", "least", "most"}: how many
linears there are, whether its class takes all of them, and the least and largest difference of a weight from the expected, in steps
of its scale.
"""

import importlib.util
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import torch
from safetensors.torch import load_file


def weight_format():
    """The module alone: its package imports the engine, of which it takes but names of types."""
    (path,) = importlib.util.find_spec("lmdeploy").submodule_search_locations
    package = importlib.util.module_from_spec(importlib.util.spec_from_loader("turbomind", None, is_package=True))
    package._tm = MagicMock()
    sys.modules["turbomind"] = package
    spec = importlib.util.spec_from_file_location("turbomind.weight_format", f"{path}/turbomind/weight_format.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def read(kind, directory: str, group: int) -> dict:
    stored, expected = {}, load_file(f"{directory}.expected.safetensors")
    for file in Path(directory).glob("*.safetensors"):
        stored.update(load_file(file))
    told = {"accepted": True, "modules": 0, "least": float("inf"), "most": float("-inf")}
    for name, weight in expected.items():
        module = name.removesuffix(".weight")
        given = {suffix: stored[module + suffix] for suffix in kind.suffix_map if module + suffix in stored}
        told["accepted"] &= kind.accepts(given)
        parts = {role: kind.normalize(given[suffix], role) for suffix, role in kind.suffix_map.items() if suffix in given}
        scales = parts["scales"].float()
        zeros = (parts["zeros"] if "zeros" in parts else kind.synthesize_zeros(parts["scales"])).float()
        scales, zeros = (each.repeat_interleave(group, 0) for each in (scales, zeros))
        steps = ((parts["weight"].float() - zeros) * scales - weight.t()) / scales
        told["least"], told["most"] = min(told["least"], steps.min().item()), max(told["most"], steps.max().item())
        told["modules"] += 1
    return told


def main(cases: str, results: str) -> None:
    formats = {kind.name: kind for kind in vars(weight_format()).values() if isinstance(kind, type) and hasattr(kind, "suffix_map")}
    with open(cases) as file:
        made = {case["name"]: read(formats[case["format"]](block_in=case["group"]), case["directory"], case["group"]) for case in json.load(file)}
    with open(results, "w") as file:
        json.dump(made, file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
