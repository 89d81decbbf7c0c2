"""Makes the wheel: the package, liblpq_kernels.so, which `npm run build:native` compiled, and liblpq_torch.so. Installing it compiles nothing.

The library is $LPQ_KERNELS, else native/build/liblpq_kernels.so.1 of the tree. liblpq_torch.so is extension/*.cpp, compiled by $CXX against
the headers of the torch that this Python has: one file for every torch from 2.10 on, on its stable ABI. It is kept in build/torch-ops.
Without such a torch the wheel has none, which is said, and operations go by ctypes. $LPQ_CUDA_FATBIN, if it is set, names the kernels for
NVIDIA GPUs that the wheel holds, too. The same inputs give the same bytes.
"""

import base64
import hashlib
import json
import importlib.util
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "src"
# 2.10 is the oldest torch that it runs in (_operations.py); torch's own library is found where the process has it.
FLAGS = ["-std=c++20", "-O2", "-fPIC", "-shared", "-s", "-fvisibility=hidden", "-ffp-contract=off", "-DTORCH_TARGET_VERSION=0x020a000000000000"]
LIBRARIES = ["-Wl,--as-needed", "-ltorch_cpu", "-Wl,-z,defs"]


def _library() -> Path:
    path = Path(os.environ.get("LPQ_KERNELS", HERE.parent / "native" / "build" / "liblpq_kernels.so.1"))
    if not path.is_file():
        raise SystemExit(f"{path} is missing: `npm run build:native` makes it, or LPQ_KERNELS names another")
    return path


def _kernels(path: Path) -> bytes:
    """The kernels for NVIDIA GPUs that `npm run build:cuda` compiled."""
    if not path.is_file() or path.open("rb").read(8) != b"LPQFAT2\0":
        raise SystemExit(f"LPQ_CUDA_FATBIN names {path}, which is no lpq_kernels.fatbin: `npm run build:cuda` makes one")
    return path.read_bytes()


def _torch() -> Path | str:
    """The folder of a torch whose headers have the stable ABI, or why there is none."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return "this Python has no torch"
    place = Path(found.origin).parent
    header = place / "include" / "torch" / "csrc" / "stable" / "c" / "shim.h"
    if not header.is_file() or "torch_call_dispatcher" not in header.read_text():
        return f"the torch in {place} is older than 2.10"
    return place


def operations() -> Path | None:
    """liblpq_torch.so, compiled unless it was; None, and a line on stderr, without a torch to compile it against."""
    torch = _torch()
    if isinstance(torch, str):
        print(f"lpq-kernels: a wheel WITHOUT compiled operations of torch, which go by ctypes then: {torch}", file=sys.stderr)
        return None
    sources, header = sorted((HERE / "extension").glob("*.cpp")), HERE.parent / "native" / "library" / "lpq_kernels.h"
    compiler = [*shlex.split(os.environ.get("CXX", "c++")), *FLAGS]
    version = subprocess.run([compiler[0], "--version"], capture_output=True, check=True).stdout
    inputs = (*(path.read_bytes() for path in sorted((HERE / "extension").iterdir())), header.read_bytes(), (torch / "version.py").read_bytes(), version, repr(compiler).encode())
    digest = hashlib.sha256(b"\0".join(inputs)).hexdigest()[:16]
    made = HERE.parent / "build" / "torch-ops" / f"{digest}.so"
    if made.is_file():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        # Sources by names that do not depend on the folder, which exceptions of torch's headers print.
        places = ["-isystem", str(torch / "include"), f"-I{header.parent}", f"-L{torch / 'lib'}", f"-ffile-prefix-map={HERE}=.", f"-ffile-prefix-map={torch}=torch"]
        ran = subprocess.run([*compiler, *places, *map(str, sources), "-o", f"{scratch}/ops.so", *LIBRARIES], capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"{HERE / 'extension'} does not compile against {torch}:\n{ran.stderr}")
        os.replace(f"{scratch}/ops.so", made)
    return made


def _facts() -> tuple[dict, str]:
    with open(HERE / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    return project, json.loads((HERE.parent / "package.json").read_text())["version"]


def _metadata() -> str:
    project, version = _facts()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {each}" for each in project["dependencies"]),
    ]
    for extra, needs in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {each}; extra == '{extra}'" for each in needs)]
    return "\n".join(lines) + "\n\n" + (HERE / "README.md").read_text()


def _entry_points() -> str:
    project, _ = _facts()
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items()) for group, points in project["entry-points"].items()
    )


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517."""
    _, version = _facts()
    tag = f"py3-none-linux_{platform.machine()}"
    info = f"lpq_kernels-{version}.dist-info"
    files = {path.relative_to(SOURCE).as_posix(): path.read_bytes() for path in sorted(SOURCE.rglob("*")) if path.suffix in (".py", ".typed")}
    files["lpq_kernels/liblpq_kernels.so"] = _library().read_bytes()
    kernels = os.environ.get("LPQ_CUDA_FATBIN")
    if kernels:
        files["lpq_kernels/lpq_kernels.fatbin"] = _kernels(Path(kernels))
    compiled = operations()
    if compiled is not None:
        files["lpq_kernels/liblpq_torch.so"] = compiled.read_bytes()
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/entry_points.txt"] = _entry_points().encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: lpq\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = f"lpq_kernels-{version}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517. There is none: the wheel holds a library that the tree beside it compiles."""
    raise SystemExit("lpq-kernels has no source distribution: build the wheel from lpq's tree")
