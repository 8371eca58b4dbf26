#!/bin/sh
# Resolves the Java peers from Maven Central and compiles the client programs; quick when nothing changed.
set -eu
cd "$(dirname "$0")/../.."
exec python3 -m tests.peers.jars
