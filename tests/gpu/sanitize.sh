#!/usr/bin/env bash
# Runs compute-sanitizer's four tools over every GPU step's tests on small problems. Needs a GPU and a CUDA build.
#   tests/gpu/sanitize.sh [BUILD_DIR]     (default: build/cuda)
# Prints one line per step and tool; exits 1 when a tool reported anything, 77 when there is nothing to run on.
set -u
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
fi
build=${1:-build/cuda}
tools=(memcheck racecheck initcheck synccheck)
if ! command -v compute-sanitizer >/dev/null; then
    echo "SKIP: compute-sanitizer is not on the PATH (it comes with the CUDA toolkit)"
    exit 77
fi
shopt -s nullglob
tests=("$build"/steps/*/step*_test)
if [ ${#tests[@]} -eq 0 ]; then
    echo "no step tests under $build/steps: cmake --workflow --preset cuda builds them" >&2
    exit 2
fi
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for test in "${tests[@]}"; do
    case $test in */0[123]_*) continue ;; esac # CPU steps
    for tool in "${tools[@]}"; do
        FLASH_STEPS_FUZZ=6 compute-sanitizer --tool "$tool" --error-exitcode 9 "$test" \
            --test-case='*random shapes*' >"$log" 2>&1
        code=$?
        echo "$(basename "$test") $tool: $(grep -E 'SUMMARY' "$log" | tail -1 | sed 's/=//g')"
        if [ $code -ne 0 ] || ! grep -q 'Status: SUCCESS' "$log"; then
            failed=1
            tail -30 "$log"
        fi
    done
done
exit $failed
