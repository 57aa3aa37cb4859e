#!/usr/bin/env bash
# The second way of install.sh: a package of npm carries all of llama.cpp's
# source, another one its library, built for this kind of machine. Only the
# server is compiled; the model is made by ./tinymodel. Usage: npm.sh WORK LOG;
# the result is WORK/out.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$1 log=$2

case $(uname -s)-$(uname -m) in
  Linux-x86_64) kind=linux-x64 ;;
  Linux-aarch64) kind=linux-arm64 ;;
  Darwin-arm64) kind=mac-arm64-metal ;;
  Darwin-x86_64) kind=mac-x64 ;;
  *) die "npm has no ready-made library of llama.cpp for $(uname -sm)" ;;
esac
debian 'command -v c++ >/dev/null && command -v git >/dev/null' g++ git ||
  die "the way by npm needs a C++ compiler and git (Debian: apt-get install g++ git; macOS: xcode-select --install)"

# fetch NAME: a package at the version and checksum that npm.txt pins.
fetch() {
  local version sum file
  read -r version sum < <(awk -v name="$1" '$1 == name { print $2, $3 }' "$here/npm.txt")
  file=$(cd "$work" && npm pack --loglevel=error --no-update-notifier --ignore-scripts --fetch-retries 1 --fetch-retry-mintimeout 2000 "$1@$version" | tail -n1) ||
    die "npm gave no $1 $version"
  [ "$(sha256 <"$work/$file" | cut -d' ' -f1)" = "$sum" ] || die "$1 $version is not what npm.txt pins"
  mkdir -p "$2"
  tar -xzf "$work/$file" -C "$2" --strip-components=1
}
say "fetching the engine's source and library from npm (46 MB)"
fetch node-llama-cpp "$work/package"
fetch "@node-llama-cpp/$kind" "$work/library"
git clone --quiet -c advice.detachedHead=false "$work/package/llama/gitRelease.bundle" "$work/source" 2>"$log" ||
  { cat "$log" >&2; die "the engine's source could not be unpacked"; }

say "making a tiny model"
(cd "$here" && go run ./tinymodel "$work/out/tiny.gguf")
(cd "$work/out" && [ "$(sha256 <tiny.gguf | cut -d' ' -f1)" = "$(cat "$here/tinymodel/tiny.sha256")" ]) ||
  die "the model that was made is not the one that tinymodel/tiny.sha256 pins"

# The library's own parts are found beside the binary, at link time and later.
cp "$work/library/bins/$kind"/lib* "$work/out"
cd "$work/source"
mkdir "$work/objects"
{ c++ -std=c++17 -o "$work/embed" tools/ui/embed.cpp && "$work/embed" "$work/objects/ui.cpp" "$work/objects/ui.h"; } >"$log" 2>&1 ||
  { cat "$log" >&2; die "the compiler does not work"; }

sources() {
  ls tools/server/*.cpp tools/mtmd/models/*.cpp tools/mtmd/clip.cpp tools/mtmd/mtmd{,-audio,-image,-helper,-helper-gen}.cpp \
    vendor/cpp-httplib/httplib.cpp vendor/hash/hash.cpp vendor/hash/{xxhash/xxhash,sha1/sha1,sha256/sha256}.c "$work/objects/ui.cpp"
}
# The symbols are those with which the library was built; unoptimized, because
# all that computes is in the library.
compile() {
  set -- "$1" "$OBJECTS/$(echo "$1" | tr / _).o"
  case $1 in
    */sha1.c) set -- "$@" c++ -std=c++17 -x c++ ;; # in a namespace
    *.c) set -- "$@" cc ;;
    *) set -- "$@" c++ -std=c++17 ;;
  esac
  "${@:3}" -O0 -w -c -DLLAMA_SHARED -DGGML_SHARED -DGGML_BACKEND_SHARED -DGGML_BACKEND_DL -DLLAMA_SUBPROCESS \
    -DCPPHTTPLIB_TCP_NODELAY=1 -DCPPHTTPLIB_LISTEN_BACKLOG=512 \
    -Iinclude -Iggml/include -Icommon -Ivendor -Ivendor/hash -Itools/mtmd -I. -I"$OBJECTS" -o "$2" "$1"
  echo "compiled $1"
}
export -f compile
export OBJECTS=$work/objects

jobs=$(getconf _NPROCESSORS_ONLN)
total=$(sources | wc -l)
say "compiling llama.cpp's server on $jobs cores (1 minute on two)"
sources | xargs -P "$jobs" -n 1 bash -ec 'compile "$0"' 2>&1 | tee "$log" | awk -v total="$total" '/^compiled / {
  done = int(10 * ++n / total) * 10
  if (done > last) { printf "real model: compiled %d %%\n", done; fflush(); last = done }
}' >&2 || { tail -n 30 "$log" >&2; die "the build failed; all of it is in $log"; }

case $kind in mac-*) origin=@loader_path ;; *) origin='$ORIGIN' ;; esac
c++ -o "$work/out/llama-server" "$work"/objects/*.o "$work/out"/libllama-common.* "$work/out"/libllama.* \
  "$work/out"/libggml.* "$work/out"/libggml-base.* -pthread "-Wl,-rpath,$origin" >>"$log" 2>&1 ||
  { tail -n 30 "$log" >&2; die "the build failed; all of it is in $log"; }
