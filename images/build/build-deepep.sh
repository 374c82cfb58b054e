#!/bin/bash
# Builds DeepEP at its commit into /wheels; the commit shows in the version.
# Use: build-deepep.sh SOURCES, a working tree (checkout.sh)
# Needs: CUDA_ARCHS ("9.0;10.0"); NCCL at /opt/nccl (install-nccl.sh), NVSHMEM (install-libraries.sh)
set -euo pipefail

mkdir -p /wheels
nvshmem=$(python3 -c 'import nvidia.nvshmem; print(nvidia.nvshmem.__path__[0])')
# EP_NCCL_ROOT_DIR is written into the package as its default, so it has to be a path of the final image too.
export EP_NCCL_ROOT_DIR=/opt/nccl NVSHMEM_DIR=$nvshmem TORCH_CUDA_ARCH_LIST=$CUDA_ARCHS
# setup.py names libraries but not where they are; libcuda is only a stub here, the node has the real one.
export LIBRARY_PATH=/opt/nccl/lib:$nvshmem/lib:/usr/local/cuda/lib64/stubs
# The aggressive loads and stores are right on 9.0 alone.
[[ $CUDA_ARCHS == 9.0 ]] && aggressive=0 || aggressive=1
cd "$1"
DISABLE_AGGRESSIVE_PTX_INSTRS=$aggressive pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .
