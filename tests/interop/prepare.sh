#!/bin/sh
# Resolves the peers from Maven Central and the Go proxy and compiles the client programs; quick when nothing changed.
set -eu
cd "$(dirname "$0")/../.."
python3 -m tests.peers.jars
exec python3 -m tests.peers.goclient
