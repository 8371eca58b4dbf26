#!/usr/bin/env bash
# Makes sure that the named programs are there, installing the package of the same name where one is missing.
set -euo pipefail
for program in "$@"; do
  command -v "$program" >/dev/null && continue
  echo "installing $program"
  if ! command -v apt-get >/dev/null; then
    echo "$program is missing and there is no apt-get here: install it by hand" >&2
    exit 1
  fi
  (apt-get install -y -qq "$program" || { apt-get update -qq && apt-get install -y -qq "$program"; }) >/dev/null
  command -v "$program" >/dev/null || { echo "$program is still missing after apt-get install" >&2; exit 1; }
done
