#!/bin/bash
# Ends a build whose arguments lack a value, before an hour of compiling, and names all of them at once.
# Use: require.sh NAME...
set -euo pipefail

missing=()
for name in "$@"; do
  [[ -n "${!name:-}" ]] || missing+=("$name")
done
if ((${#missing[@]})); then
  echo "build arguments without a value: ${missing[*]}" >&2
  echo "run 'moerl image args STACK --env ENV': it prints them, or the command that resolves each" >&2
  exit 2
fi
