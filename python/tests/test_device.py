"""Products on a device, without one: device_stub.c is the library's device on the host's memory, device_cases.py what is asked of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMES = [
    line[len("def ") : line.index("(")]
    for line in (HERE / "device_cases.py").read_text().split("\n")
    if line.startswith("def ") and line.endswith("():")
]


@pytest.fixture(scope="module")
def told(tmp_path_factory, artifacts):
    library = Path(os.environ["LPQ_KERNELS"]).resolve()
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    stub = tmp_path_factory.mktemp("stub") / "liblpq_device.so"
    header = HERE.parents[1] / "native" / "library"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{header}", "-Wl,--no-as-needed", f"-Wl,-rpath,{library.parent}"]
    subprocess.run([compiler, *flags, str(HERE / "device_stub.c"), str(library), "-o", str(stub), "-lm", "-ldl"], check=True)
    env = {**os.environ, "LPQ_KERNELS": str(stub), "LPQ_ARTIFACTS": str(artifacts)}
    done = subprocess.run([sys.executable, str(HERE / "device_cases.py")], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().split("\n")[-1])


def test_there_are_cases(told):
    assert set(NAMES) >= set(told) and len(told) > 10


@pytest.mark.parametrize("name", NAMES)
def test_device(told, name):
    if name not in told:
        pytest.skip("no case")
    assert told[name] is None, told[name]
