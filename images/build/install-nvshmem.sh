#!/bin/bash
# NVSHMEM, to which DeepEP's legacy sources link; its v2 kernels do not call it.
# Needs: NVSHMEM, CUDA (versions)
set -euo pipefail

pip install --no-cache-dir --no-deps --force-reinstall "nvidia-nvshmem-cu${CUDA%%.*}==${NVSHMEM}"
lib=$(python3 -c 'import nvidia.nvshmem; print(nvidia.nvshmem.__path__[0])')/lib
# Like NCCL's, the package has the library under its versioned name alone.
host=$(find "$lib" -name 'libnvshmem_host.so.*' -print -quit)
ln -sf "$(basename "$host")" "$lib/libnvshmem_host.so"
