#!/bin/bash
# One commit of a repository, with its submodules, and nothing else of its history.
# Use: checkout.sh REPOSITORY COMMIT DIRECTORY
set -euo pipefail

repository=$1 commit=$2 directory=$3
git init --quiet "$directory"
# An existing working tree (the base image's own) may be changed or belong to another user.
git config --global --add safe.directory "$directory"
git -C "$directory" fetch --quiet --depth 1 "$repository" "$commit"
git -C "$directory" checkout --quiet --force --detach "$commit"
git -C "$directory" submodule --quiet update --init --recursive --depth 1
[[ $(git -C "$directory" rev-parse HEAD) == "$commit" ]]
