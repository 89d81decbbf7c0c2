#!/bin/bash
# tilus_pip.sh WHEELS SITE: installs pip's tilus 0.2 into the folder SITE from a folder of wheels, without a network, beside a Python that has
# torch with CUDA. On a machine with a network, the wheels are fetched by
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_24_x86_64 -d WHEELS tilus==0.2 apache-tvm-ffi==0.1.10
# (later versions of apache-tvm-ffi have headers that kernels of tilus 0.2 do not compile with). numpy, torch, tabulate, tqdm, filelock and the example's pandas have to be there already. Then
#   source bench/interop/tilus_pip.sh WHEELS SITE && python3 bench/interop/tilus_pip.py matmul_a16wx.py
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$2" "$1"/tilus-*.whl "$1"/apache_tvm_ffi-*.whl
export PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}" TILUS_CACHE_DIR="$2/.cache"
# Its kernels are linked with libcuda and libcudart.
export LIBRARY_PATH="/usr/local/cuda/lib64/stubs:/usr/local/cuda/lib64${LIBRARY_PATH:+:$LIBRARY_PATH}"
export LD_LIBRARY_PATH="/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
