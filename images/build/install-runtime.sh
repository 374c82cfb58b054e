#!/bin/bash
# What moerl_runtime imports, and the folder in which the image has it. The package itself is copied last, so that a change
# to it rebuilds one small layer.
# Use: install-runtime.sh PYPROJECT
set -euo pipefail

mapfile -t needed < <(
  python3 -c '
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    print(*tomllib.load(file)["project"]["dependencies"], sep="\n")
' "$1"
)
pip install --no-cache-dir "${needed[@]}"
python3 -c '
import sysconfig
from pathlib import Path

Path(sysconfig.get_path("purelib"), "moerl.pth").write_text("/opt/moerl\n")
'
# Pods start `python`.
command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python
