"""Runs cells on this machine and writes a record: the one command for a host with a GPU.

    python3 test/engines/gpu/drive.py --prepared DIR --out FILE [--cells EXPRESSION] [--budget SECONDS] [--jobs N]
                                     [--logs FOLDER] [--wheel SITE] [--device cuda|cpu]

DIR is what prepare.js made. Cells are those of DIR/cells.json, those of speed and of the host's cost; EXPRESSION chooses by name (--list prints
names and groups). SITE has the wheel of python/, unpacked; without it cells of the plugin are not run. Cells that share an environment share a
process, so that vLLM is imported once; a cell that fails, hangs or ends its process costs no other: its reason is recorded, and a new process
goes on behind it. --jobs has several processes share the card; those of cells that measure time run alone, before and behind them. FOLDER gets
what each process prints, tracebacks included. FILE is written after every cell. Exits with 1 where a cell failed or differs, with 2 where
nothing ran.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MARK = "@@cell "
LIMIT = {"speed": 240.0, "standard": 150.0, "plugin": 180.0, "transformers": 90.0, "cost": 90.0}
"""Seconds of a cell, the start of its process included."""

EXPERTS = 200.0
"""The same of experts in vLLM's own kernels: its warm-up compiles programs of Triton for a minute."""

TIMED = ("cost", "speed")
"""Groups whose cells have the machine to themselves."""

VLLM_KERNELS = (
    "CutlassW4A8LinearKernel,MacheteLinearKernel,AllSparkLinearKernel,MarlinLinearKernel,ConchLinearKernel,ExllamaLinearKernel,"
    "TritonW4A16LinearKernel,HummingLinearKernel,Dynamic4bitLinearKernel,ZentorchWNA16LinearKernel,CPUWNA16LinearKernel"
)
"""vLLM's own kernels of packed integers, which the plugin's cells do without."""

COMMON = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_DEEP_GEMM": "0",
    # What one kernel's cell compiled is not another's.
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    # A host without a network has no other address.
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    # A program that uses multicast on shared hosts can put their cards out of service.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}


def facts(device: str) -> dict[str, Any]:
    """What the record says of the machine."""
    found: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    program = (
        "import json, torch\n"
        "cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]\n"
        "print(json.dumps({'torch': torch.__version__, 'cards': [{'name': c.name, 'arch': f'{c.major}{c.minor}', 'memory': c.total_memory} for c in cards]}))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    found.update(json.loads(ran.stdout.strip().split("\n")[-1]) if ran.returncode == 0 else {"torch": None, "cards": []})
    if device == "cpu":
        found["cards"] = []
    smi = subprocess.run(["sh", "-c", "nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1"], capture_output=True, text=True)
    found["driver"] = smi.stdout.strip() or None
    return found


def limit_of(cell: dict[str, Any]) -> float:
    return EXPERTS if cell["group"] == "standard" and "experts" in cell["name"] else LIMIT[cell["group"]]


def batches(cells: list[dict[str, Any]], jobs: int) -> list[list[dict[str, Any]]]:
    """Cells that one process may run, in order of first appearance; no more of them than leave each of the jobs some."""
    made: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        made.setdefault(json.dumps([cell["worker"], sorted(cell["env"].items())]), []).append(cell)
    most = -(-len(cells) // jobs)
    return [batch[at : at + most] for batch in made.values() for at in range(0, len(batch), most)]


class Worker:
    """A process of work.py over cells; its lines come through a queue, what else it prints goes to a file of `logs`."""

    def __init__(self, cells: list[dict[str, Any]], device: str, wheel: Path | None, logs: Path, verbose: bool) -> None:
        self.file = tempfile.NamedTemporaryFile("w", suffix=".json", delete=False)
        json.dump({"device": device, "cells": cells}, self.file)
        self.file.close()
        env = {**os.environ, **COMMON, **cells[0]["env"]}
        if cells[0]["plugin"]:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(wheel), env.get("PYTHONPATH")]))
            env["LPQ_KERNELS"] = ""
        else:
            env["VLLM_PLUGINS"] = ""
        if device == "cpu":
            env.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", CUDA_VISIBLE_DEVICES="")
        if verbose:
            env["VLLM_LOGGING_LEVEL"] = "INFO"
        self.log = Path(tempfile.mkstemp(dir=logs, prefix=re.sub(r"\W+", "-", cells[0]["name"]) + "-", suffix=".log")[1])
        program = [sys.executable, "-X", "faulthandler", str(HERE / "work.py"), self.file.name]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(program, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.log.open("a", buffering=1) as log:
            for line in self.process.stdout:
                if line.startswith(MARK):
                    self.lines.put(line[len(MARK) :])
                log.write(line)
        self.lines.put(None)

    def next(self, seconds: float) -> dict[str, Any]:
        """The next cell's result; an outcome "failed" where the process hangs or ends."""
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return {"outcome": "failed", "reason": f"no result in {seconds:.0f} s; last: {self.last()}", "ended": True}
        if line is None:
            code = self.process.wait()
            return {"outcome": "failed", "reason": f"its process ended with {code}; last: {self.last()}", "ended": True}
        read: dict[str, Any] = json.loads(line)
        return read

    def last(self) -> str:
        """The end of what the process printed besides results, which a thread writes down when it comes to it."""
        printed = (line.strip() for line in self.log.read_text(errors="replace").split("\n"))
        lines = [line for line in printed if line and not line.startswith(MARK)]
        return " | ".join(lines[-3:])[-600:] or "nothing"

    def close(self, hangs: bool = False) -> None:
        if hangs and self.process.poll() is None:
            self.process.send_signal(signal.SIGABRT)  # its stacks go to the log
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        os.unlink(self.file.name)


def lacking(cell: dict[str, Any], cards: int, device: str, wheel: Path | None) -> str | None:
    """Why this machine does not run a cell; None where it does."""
    if cell["plugin"] and wheel is None:
        return "no --wheel"
    if cell["ranks"] > max(cards, 1):
        return f"it needs {cell['ranks']} cards, and there are {cards}"
    if device == "cpu" and cell["group"] == "cost":
        return "it measures a GPU"
    return None


def run(cells: list[dict[str, Any]], record: dict[str, Any], options: argparse.Namespace, started: float, logs: Path) -> None:
    guard = threading.Lock()

    def keep(cell: dict[str, Any], result: dict[str, Any]) -> None:
        with guard:
            record["cells"].append({"name": cell["name"], "group": cell["group"], **result})
            record["seconds"] = round(time.monotonic() - started, 1)
            partial = options.out.with_suffix(".partial")
            partial.write_text(json.dumps(record, indent=1) + "\n")
            os.replace(partial, options.out)
            print(row(record["cells"][-1]), flush=True)

    def over(batch: list[dict[str, Any]]) -> None:
        waiting, worker = list(batch), None
        while waiting:
            left = options.budget - (time.monotonic() - started)
            if left < 20:
                for cell in waiting:
                    keep(cell, {"outcome": "skipped", "reason": f"the budget of {options.budget:.0f} s is used up"})
                break
            if worker is None:
                worker = Worker(waiting, options.device, options.wheel, logs, options.logs is not None)
            limit = options.limit or limit_of(waiting[0]) * (6 if options.device == "cpu" else 1)
            begun = time.monotonic()
            result = worker.next(min(limit, left))
            ended = result.pop("ended", False)
            keep(waiting.pop(0), {"took": round(time.monotonic() - begun, 1), **result})
            if ended:
                worker.close(hangs=True)
                worker = None
        if worker is not None:
            worker.close()

    cards = len(record["machine"]["cards"])
    able = []
    for cell in cells:
        why = lacking(cell, cards, options.device, options.wheel)
        if why is None:
            able.append(cell)
        else:
            keep(cell, {"outcome": "skipped", "reason": why})
    for alone, some in groupby(able, lambda cell: cell["group"] in TIMED or cell["ranks"] > 1):
        jobs = 1 if alone else options.jobs
        with ThreadPoolExecutor(jobs) as pool:
            for done in [pool.submit(over, batch) for batch in batches(list(some), jobs)]:
                done.result()


def row(cell: dict[str, Any]) -> str:
    told = cell.get("reason") or cell.get("told", "")
    if cell["outcome"] == "ran" and "off" in cell:
        told = f"off {cell['off']:.2g} (mean {cell['mean']:.2g}) of {cell['bound']:.2g}, {cell['equal']} of {cell['of']} tokens equal"
    kernel = f"  [{', '.join(cell['kernels'])}]" if cell.get("kernels") else ""
    return f"{cell['outcome']:8} {cell.get('took', 0):6.1f} s  {cell['name']}: {told}{kernel}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--prepared", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--cells", default="")
    options.add_argument("--budget", type=float, default=1200)
    options.add_argument("--wheel", type=Path)
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options.add_argument("--limit", type=float, help="most seconds of a cell (default: by its group)")
    options.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options.add_argument("--logs", type=Path, help="a folder for what processes print")
    options.add_argument("--list", action="store_true", help="print the cells and end")
    options.add_argument("--small", action="store_true", help="small shapes and counts, to try this program")
    chosen = options.parse_args()
    started = time.monotonic()
    sys.path.insert(0, str(HERE))
    from rows import rows

    cells = [cell for cell in rows(chosen.prepared, chosen.device, chosen.small, VLLM_KERNELS) if re.search(chosen.cells, cell["name"])]
    if not cells:
        sys.exit(f"drive.py: no cell's name has '{chosen.cells}'")
    if chosen.list:
        print("\n".join(f"{cell['group']:13} {cell['name']}" for cell in cells))
        return
    record: dict[str, Any] = {"when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": facts(chosen.device), "cells": []}
    if chosen.device == "cuda" and not record["machine"]["cards"]:
        sys.exit("drive.py: torch finds no GPU here: --device cpu tries the program")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if chosen.logs is not None:
            chosen.logs.mkdir(parents=True, exist_ok=True)
        run(cells, record, chosen, started, chosen.logs or Path(folder))
    counts = {outcome: sum(cell["outcome"] == outcome for cell in record["cells"]) for outcome in ("ran", "differs", "failed", "refused", "skipped")}
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + f" in {time.monotonic() - started:.0f} s: {chosen.out}")
    sys.exit(2 if counts["ran"] + counts["differs"] == 0 else 1 if counts["differs"] + counts["failed"] else 0)


if __name__ == "__main__":
    main()
