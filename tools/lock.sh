#!/usr/bin/env bash
# requirements.in -> requirements.lock: exact versions with hashes, and nothing about where they came from.
set -euo pipefail
python=$1
cd "$(dirname "$0")/.."
"$python" -m venv build/lock-venv
build/lock-venv/bin/python -m pip install --quiet pip-tools
build/lock-venv/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header \
  --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
  --output-file build/requirements.lock requirements.in
{
  echo "# What \`make install\` puts into .venv: exact versions with hashes. Refresh with \`make lock\`."
  grep -v '^# The following packages' build/requirements.lock
} > requirements.lock
