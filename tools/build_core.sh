#!/usr/bin/env bash
# Compiles the core beside its sources. Where there is a compiler a failure is an error; where there is none
# the plain-Python twins do the work, and that is said. The stamp is made only by a module that was built, so that
# the next `make` looks again.
set -euo pipefail
python=$1 stamp=$2
cd "$(dirname "$0")/.."
rm -f "$stamp"

if [ ! -e src/hotfire/core/_core.c ]; then
  echo 'no core sources here: plain Python does the work'
  exit 0
fi
if [ "${HOTFIRE_NO_CORE:-}" = 1 ]; then
  rm -f src/hotfire/core/*.so
  echo 'HOTFIRE_NO_CORE=1: plain Python does the work'
  exit 0
fi
compiler=$("$python" -c 'import os, sysconfig; print((os.environ.get("CC") or sysconfig.get_config_var("CC")).split()[0])')
if ! command -v "$compiler" >/dev/null; then
  rm -f src/hotfire/core/*.so
  echo "no C compiler ($compiler) on this machine: plain Python does the work, more slowly"
  exit 0
fi
HOTFIRE_REQUIRE_CORE=1 "$python" setup.py --quiet build_ext --force --inplace
touch "$stamp"
