"""Runs directories in llama.cpp, one process each, for test/engines; drive_vllm.py says what is read and written;
`nll`, besides, is the mean over windows of `text`, `window` tokens each.

drive_llama.cpp, compiled, lies in the environment of its Python.
"""

import json
import subprocess
import sys
from pathlib import Path


def ran(case: dict) -> dict:
    program = Path(sys.executable).parents[1] / "drive_llama"
    floats = Path(case["directory"]) / "floats.gguf"
    model = floats if floats.exists() else floats.with_name("model.gguf")
    done = subprocess.run([program, "flash" if case["flash"] else "run", str(model), str(case["tokens"]), *map(str, case["ids"])], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().split("\n")
        return {"outcome": "refused", "sentence": lines[0].replace(case["directory"], "DIR")}
    told = {"outcome": "ran", **json.loads(done.stdout)}
    if not case["text"]:
        return told
    text = subprocess.run([program, "windows", str(model), str(case["window"]), *map(str, case["text"])], capture_output=True, text=True, check=True)
    return {**told, "nll": float(text.stdout)}


def main(cases: str, results: str) -> None:
    with open(cases) as file:
        made = {case["name"]: ran(case) for case in json.load(file)}
    with open(results, "w") as file:
        json.dump(made, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
