#!/bin/bash
# SGLang from the pinned commit, in the working tree from which the base image serves. Compiled parts stay the base's.
# Use: install-sglang.sh DIRECTORY, a working tree (checkout.sh)
# Needs: SGLANG (version), since one commit alone does not say which release it belongs to
set -euo pipefail

export SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SGLANG=$SGLANG SGLANG_BUILD_RUST_EXTS=none
pip install --no-cache-dir --no-deps --editable "$1/python"
# An upstream build of DeepEP, which would be imported in the place of the one that knows EFA.
pip uninstall --yes --quiet sgl-deep-ep deep-ep
