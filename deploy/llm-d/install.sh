#!/usr/bin/env bash
# Builds llm-d's Endpoint Picker from its Go module into FOLDER/epp. Nothing of
# it becomes part of this repository.
set -euo pipefail
version=${EPP_VERSION:-v0.10.0}
folder=${1:?usage: install.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
if [ -x "$folder/epp" ] && [ "$(cat "$folder/version" 2>/dev/null)" = "$version" ]; then
  exit 0
fi
echo "building llm-d-router $version (the first time takes several minutes)" >&2
GOFLAGS=-trimpath CGO_ENABLED=0 GOBIN="$folder" go install "github.com/llm-d/llm-d-router/cmd/epp@$version"
echo "$version" >"$folder/version"
