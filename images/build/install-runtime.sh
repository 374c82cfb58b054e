#!/bin/bash
# moerl_runtime as an installed package: what it imports and is built with, and later the package itself, so that a change to
# it rebuilds one small layer.
# Use: install-runtime.sh dependencies SOURCES, then install-runtime.sh package SOURCES DIRECTORY; SOURCES has pyproject.toml
set -euo pipefail

case $1 in
  dependencies)
    mapfile -t needed < <(
      python3 -c '
import sys
import tomllib

with open(f"{sys.argv[1]}/pyproject.toml", "rb") as file:
    project = tomllib.load(file)
print(*project["project"]["dependencies"], *project["build-system"]["requires"], sep="\n")
' "$2"
    )
    pip install --no-cache-dir "${needed[@]}"
    # Pods start `python`.
    command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python
    ;;
  package)
    # Built in a copy, since the build writes beside its sources, and by the image's own setuptools: nothing is downloaded.
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cp -r "$2" "$work/sources"
    # Whoever runs a pod reads it, whatever the modes of the checkout.
    umask 022
    chmod -R a+rX "$work/sources"
    pip install --no-cache-dir --no-deps --no-index --no-build-isolation --target "$3" "$work/sources"
    # A folder of its own, that later packages cannot move; its metadata there is found like that of any other package.
    python3 -c '
import sys
import sysconfig
from pathlib import Path

Path(sysconfig.get_path("purelib"), "moerl.pth").write_text(f"{sys.argv[1]}\n")
' "$3"
    ;;
  *)
    echo "no part $1" >&2
    exit 2
    ;;
esac
