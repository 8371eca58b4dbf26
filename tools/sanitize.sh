#!/usr/bin/env bash
# The tests marked `core`, over a second copy of the package whose core was compiled with address and
# undefined-behaviour checks. The copy is in build/sanitize; the module beside the sources stays as it is.
set -euo pipefail
python=$1
shift
cd "$(dirname "$0")/.."

if [ ! -e src/hotfire/core/_core.c ]; then
  echo 'sanitize: there is no src/hotfire/core/_core.c to check' >&2
  exit 1
fi
rm -rf build/sanitize build/sanitize-objects
HOTFIRE_SANITIZE=1 HOTFIRE_REQUIRE_CORE=1 "$python" setup.py --quiet \
  build --build-base build/sanitize-objects --build-lib build/sanitize

# The interpreter was not built with the checks, so their runtime has to be there before it.
runtime="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
# Python keeps objects to the end on purpose: leaks are not what this looks for.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1
export PYTHONMALLOC=malloc PYTHONPATH=build/sanitize HOTFIRE_EXPECT_UNDER=build/sanitize
# Only what Python prints is captured: what the checks say of a process they abort must come out.
check() {
  LD_PRELOAD=$runtime "$python" -m pytest --capture=sys -m 'core and not slow and not crash and not interop' \
    --timeout 600 "$@"
}
if [ $# -gt 0 ]; then
  check "$@"
  exit
fi
# Two halves at once, for two cores.
half=(tests/unit/broker tests/unit/client tests/wire)
check "${half[@]}" > build/sanitize-half.log 2>&1 &
other=$!
code=0
check "${half[@]/#/--ignore=}" --ignore=tests/unit/spark tests || code=$?
wait "$other" || code=$?
cat build/sanitize-half.log
exit "$code"
