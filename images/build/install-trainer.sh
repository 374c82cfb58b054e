#!/bin/bash
# Megatron-LM, Miles and what they need, without a package of the engine's moving: pip may add, not change.
# TileLang alone moves, to Miles' version (the catalog says why); pip reports that SGLang requires another one and goes on.
# Use: install-trainer.sh MILES MEGATRON, working trees (checkout.sh); the extensions' wheels are below /wheels
# Needs: SGLANG_ROUTER, TILELANG, FLASH_LINEAR_ATTENTION, NVIDIA_MODELOPT (versions), MBRIDGE, MEGATRON_BRIDGE,
# TORCH_MEMORY_SAVER (commits), CUDA (version), OPEN_REQUIREMENTS ("ray==2.58.0 wandb==0.29.0")
set -euo pipefail

miles=$1 megatron=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip list --format freeze --exclude-editable >"$work/all"
# Held are the engine's packages; not what is installed here, nor libraries that differ from what torch asks for, which no
# resolution would fit: install-libraries.sh and install-nccl.sh put those back afterwards.
grep -iE '^(torch|triton|nvidia-|cuda-|sglang|sgl-|flashinfer|transformers|numpy|apache-tvm-ffi)' "$work/all" \
  | grep -viE '^(sglang-router|nvidia-modelopt|torch-memory-saver|torch_memory_saver)=|^nvidia-(nccl|nvshmem|cudnn)-cu' \
    >"$work/constraints"
# The catalog's versions of what Miles requires without one, less what the base image has, which fits the engine.
chosen() {
  local pins pin
  sed -E 's/==.*//; s/[-_.]+/-/g' "$work/all" | tr '[:upper:]' '[:lower:]' >"$work/names"
  read -ra pins <<<"$OPEN_REQUIREMENTS"
  for pin in "${pins[@]}"; do
    grep -qxF "${pin%%==*}" "$work/names" || echo "$pin"
  done
}
chosen >>"$work/constraints"
# Debian's packages have no list of their files, so pip ends where it would replace one (PyJWT, for mcp). Its newer version
# goes beside it first, ahead on the path; dpkg's own files stay.
keep() {
  local beside
  pip install --no-cache-dir --quiet --dry-run --report "$work/report" --constraint "$work/constraints" "$@"
  mapfile -t beside < <(
    python3 -c '
import json
import sys
from importlib.metadata import PackageNotFoundError, distribution

with open(sys.argv[1]) as file:
    planned = [package["metadata"] for package in json.load(file)["install"]]
for package in planned:
    try:
        found = distribution(package["name"])
    except PackageNotFoundError:
        continue
    if found.read_text("RECORD") is None:
        print(package["name"], package["version"], sep="==")
' "$work/report"
  )
  ((${#beside[@]} == 0)) || pip install --no-cache-dir --no-deps --ignore-installed "${beside[@]}"
  pip install --no-cache-dir --constraint "$work/constraints" "$@"
}

pip uninstall --yes --quiet transformer-engine transformer-engine-torch transformer-engine-cu12 transformer-engine-cu13
pip install --no-cache-dir --no-deps --force-reinstall /wheels/transformer_engine*.whl /wheels/flash_attn-*.whl \
  /wheels/apex-*.whl
# Miles' own fixes to Transformer Engine, the one for Flash Attention on B300 among them.
engine=$(python3 -c '
from importlib.util import find_spec

print(find_spec("transformer_engine").submodule_search_locations[0])
')
shopt -s nullglob
for fix in "$miles/docker/patch/cu${CUDA%%.*}"/*.patch; do
  patch --directory "$engine" --strip 1 --forward <"$fix"
done
# Installed without its dependencies, of which it imports these at once.
keep einops onnx onnxscript nvdlfw-inspect
keep "sglang-router==${SGLANG_ROUTER}" "tilelang==${TILELANG}" "flash-linear-attention==${FLASH_LINEAR_ATTENTION}" \
  "nvidia-modelopt[torch]==${NVIDIA_MODELOPT}"
keep --requirement "$miles/requirements.txt"
keep megatron-energon multi-storage-client

pip install --no-cache-dir --no-deps "git+https://github.com/ISEEKYAN/mbridge.git@${MBRIDGE}"
pip install --no-cache-dir --no-deps --no-build-isolation \
  "git+https://github.com/radixark/Megatron-Bridge.git@${MEGATRON_BRIDGE}"
TMS_CUDA_MAJOR=${CUDA%%.*} pip install --no-cache-dir --no-deps --force-reinstall \
  "git+https://github.com/fzyzcjy/torch_memory_saver.git@${TORCH_MEMORY_SAVER}"
pip install --no-cache-dir --no-deps --editable "$megatron" --editable "$miles"
