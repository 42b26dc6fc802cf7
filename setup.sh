#!/bin/sh
# Installs what `cmake --workflow --preset tour` and `--preset test` need, and nothing else:
#   a C++20 compiler, CMake 3.25 or newer, Ninja, make, patch, doctest, Boost.Context, Python 3 with matplotlib or venv.
# Says first what it will install; installs nothing when all is there. docs/building.md gives the reason for each.
set -eu

case ${1:-} in
-h | --help)
    printf 'setup.sh\n\n'
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
    ;;
'') ;;
*)
    printf 'setup: takes no argument; --help says what it does\n' >&2
    exit 2
    ;;
esac

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

compiler() {
    for candidate in "${CXX:-}" c++ g++ clang++; do
        if [ -n "$candidate" ] && have "$candidate"; then printf '%s' "$candidate"; return 0; fi
    done
    return 1
}

# compiles 'TEXT': true when the C++ compiler accepts it as C++20.
compiles() {
    cxx=$(compiler) || return 1
    printf '%s\n' "$1" | "$cxx" -std=c++20 -I/opt/homebrew/include -I/usr/local/include -x c++ -fsyntax-only - >/dev/null 2>&1
}

has_new_compiler() { compiles '#include <bit>
static_assert(std::bit_cast<unsigned>(1.0f) == 0x3f800000u);'; }
has_doctest() { compiles '#include <doctest/doctest.h>'; }
has_boost_context() { compiles '#include <boost/context/fiber.hpp>'; }
has_python() {
    have python3 && { python3 -c 'import matplotlib' || python3 -c 'import venv, ensurepip'; } >/dev/null 2>&1
}
has_new_cmake() {
    have cmake && cmake --version |
        awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 3 || (v[1] == 3 && v[2] >= 25)) }'
}

if have apt-get; then
    install='env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends'
    refresh='apt-get update -q'
    p_compiler=g++ p_cmake=cmake p_ninja=ninja-build p_doctest=doctest-dev
    p_boost=libboost-context-dev p_python='python3 python3-matplotlib' p_venv='python3 python3-venv'
elif have dnf; then
    install='dnf install -y' refresh=''
    p_compiler=gcc-c++ p_cmake=cmake p_ninja=ninja-build p_doctest=doctest-devel
    p_boost=boost-devel p_python='python3 python3-matplotlib' p_venv=python3
elif have pacman; then
    # A package database that is refreshed without an upgrade breaks Arch; -Syu is its supported way.
    install='pacman -Syu --noconfirm --needed' refresh=''
    p_compiler=gcc p_cmake=cmake p_ninja=ninja p_doctest=doctest
    p_boost=boost p_python='python python-matplotlib' p_venv=python
elif have brew; then
    install='brew install' refresh=''
    p_compiler=llvm p_cmake=cmake p_ninja=ninja p_doctest=doctest
    p_boost=boost p_python='python python-matplotlib' p_venv=python
else
    install='' refresh=''
    p_compiler='C++20-compiler' p_cmake='cmake>=3.25' p_ninja=ninja p_doctest=doctest
    p_boost=boost-context p_python='python3 matplotlib' p_venv='python3-venv'
fi

sudo=''
on_brew() { [ "${install%% *}" = brew ]; }
if [ "$(id -u)" -ne 0 ] && ! on_brew; then sudo=sudo; fi

# install_packages "NAME NAME": says what and how, then does it.
install_packages() {
    [ -n "$install" ] || die "no apt-get, dnf, pacman or brew here; please install: $1"
    if [ -n "$sudo" ] && ! have sudo; then die "not root and no sudo; as root, run: $install $1"; fi
    say "installing $1"
    say "with ${sudo:+$sudo }$install"
    # Word splitting makes words of the commands and names above.
    # shellcheck disable=SC2086
    if [ -n "$refresh" ]; then $sudo $refresh; fi
    # shellcheck disable=SC2086
    $sudo $install $1
}

wanted=''
want() { wanted="$wanted $*"; }
compiler >/dev/null || want "$p_compiler"
have cmake || want "$p_cmake"
have ninja || want "$p_ninja"
have make || want make
have patch || want patch
has_doctest || want "$p_doctest"
has_boost_context || want "$p_boost"
has_python || want "$p_python"
if [ -n "$wanted" ]; then install_packages "${wanted# }"; fi

if ! has_new_cmake; then
    newer=/opt/flash-steps-cmake
    say "$(cmake --version | head -n 1) is older than 3.25: a newer one from PyPI goes to $newer, linked in /usr/local/bin"
    python3 -c 'import venv, ensurepip' 2>/dev/null || install_packages "$p_venv"
    $sudo python3 -m venv "$newer"
    $sudo "$newer/bin/pip" install --quiet 'cmake>=3.25,<4'
    for tool in cmake ctest; do $sudo ln -sf "$newer/bin/$tool" "/usr/local/bin/$tool"; done
    hash -r
    has_new_cmake || die "an older cmake comes first on the PATH; put /usr/local/bin before it"
fi

has_new_compiler || die "$(compiler) is too old for C++20: install g++ 11 or clang++ 14, or newer, and set CXX"
for check in has_doctest has_boost_context has_python; do
    $check || die "${check#has_} is still missing after the installation; docs/building.md says what it looks for"
done
if [ -n "$wanted" ]; then say "done"; else say "all is there"; fi
