#!/bin/bash
# Takes away what would be loaded in the place of the EFA installer's and the pinned packages' libraries.
# Use: remove-conflicts.sh [PACKAGE PATTERN...], those and the ones below
set -euo pipefail

# NVIDIA's packages are held: without --allow-change-held-packages apt leaves them where they are and reports success.
patterns=(
  'libnccl2' 'libnccl-dev'
  'ibverbs-utils' 'ibverbs-providers' 'libibverbs-dev' 'libibverbs1' 'libmlx5-1'
  # Forward compatibility: a libcuda older than the node's driver wins over it (CUDA error 803).
  'cuda-compat-*'
  "$@"
)
mapfile -t installed < <(
  dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' "${patterns[@]}" 2>/dev/null \
    | sed -n 's/^installed //p' | sort -u
)
if ((${#installed[@]})); then
  apt-get remove -y --purge --allow-change-held-packages "${installed[@]}"
fi
rm -rf /opt/hpcx /usr/local/mpi /etc/ld.so.conf.d/hpcx.conf
rm -rf /usr/local/cuda*/compat /etc/ld.so.conf.d/*compat*.conf
ldconfig
