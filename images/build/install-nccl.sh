#!/bin/bash
# Exactly one NCCL, the pinned one. torch asks for an older one, which every pip step that looks at torch brings back: this
# runs again after the last of them.
# Needs: NCCL, CUDA (versions)
set -euo pipefail

package=nvidia-nccl-cu${CUDA%%.*}
pip uninstall --yes --quiet nvidia-nccl-cu12 nvidia-nccl-cu13
pip install --no-cache-dir --no-deps --force-reinstall "${package}==${NCCL}"
library=$(python3 -c '
import sys
from importlib.metadata import files

print(next(path.locate().resolve() for path in files(sys.argv[1]) if path.name == "libnccl.so.2"))
' "$package")
root=$(dirname "$(dirname "$library")")
# The package has no libnccl.so, by which DeepEP links; and one path that does not name the version of Python.
ln -sf libnccl.so.2 "$root/lib/libnccl.so"
ln -sfn "$root" /opt/nccl
echo /opt/nccl/lib >/etc/ld.so.conf.d/000-nccl.conf
ldconfig
