"""Runs a Python script with matplotlib: with this interpreter where it has it, else in a virtual environment that is
made once.

    with_matplotlib.py --venv DIR SCRIPT [ARGUMENTS...]

Exits 77 with one sentence when there is no matplotlib and none can be had.
"""

import argparse
import pathlib
import subprocess
import sys

UNAVAILABLE = 77
REQUIREMENTS = pathlib.Path(__file__).resolve().parent / "requirements.txt"


def has_matplotlib(python):
    check = subprocess.run([python, "-c", "import matplotlib, numpy"], capture_output=True)
    return check.returncode == 0


def make_environment(directory):
    """A virtual environment with what requirements.txt names; returns its interpreter."""
    python = directory / "bin" / "python"
    if python.exists() and has_matplotlib(python):
        return python
    print(f"matplotlib is missing here; installing it into {directory}", flush=True)
    steps = (
        ([sys.executable, "-m", "venv", directory], "install python3-venv, or matplotlib itself"),
        (
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS],
            "is there a network? Without one, install matplotlib by the system's package manager",
        ),
    )
    for command, advice in steps:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            print(f"SKIP: no matplotlib, so no pictures: {advice}. ({' '.join(last)})", file=sys.stderr)
            sys.exit(UNAVAILABLE)
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=pathlib.Path, required=True, help="where the virtual environment is made")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    python = sys.executable if has_matplotlib(sys.executable) else make_environment(options.venv)
    return subprocess.run([python, options.script, *options.arguments]).returncode


if __name__ == "__main__":
    sys.exit(main())
