"""Makes the wheel: the package and liblpq_kernels.so, which `npm run build:native` compiled. Nothing is compiled here or where it is installed.

The library is $LPQ_KERNELS, else native/build/liblpq_kernels.so.1 of the tree. The same inputs give the same bytes.
"""

import base64
import hashlib
import json
import os
import platform
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "src"


def _library() -> Path:
    path = Path(os.environ.get("LPQ_KERNELS", HERE.parent / "native" / "build" / "liblpq_kernels.so.1"))
    if not path.is_file():
        raise SystemExit(f"{path} is missing: `npm run build:native` makes it, or LPQ_KERNELS names another")
    return path


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
