"""Draws the committed pictures from the committed results, and this machine's from its local ones.

    draw_all.py --venv DIR
"""

import argparse
import pathlib
import subprocess
import sys

import results

HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=pathlib.Path, required=True, help="where matplotlib goes when it is missing")
    options = parser.parse_args()
    runs = [["--out", HERE / "img", *results.committed()]]
    if results.local():
        runs.append(["--out", results.LOCAL / "img", *results.local()])
    for arguments in runs:
        command = [sys.executable, HERE / "with_matplotlib.py", "--venv", options.venv, HERE / "plot.py", *arguments]
        status = subprocess.run(command).returncode
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
