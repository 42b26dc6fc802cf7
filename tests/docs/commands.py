#!/usr/bin/env python3
"""The commands of the documents: every block fenced as sh, as it is written.

    commands.py --list                 which blocks there are, and which are not run
    commands.py --run [FILE...]        runs them in a copy of the sources, file by file, block by block
    commands.py --run --copy DIR       keeps the copy, with what was built in it

A comment on the line before the fence says when a block is no ordinary one:

    <!-- not run: needs a GPU -->      with the reason, one of REASONS
    <!-- fails: the files differ -->   runs, and must end in an error, for the reason given
"""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from markdown import ROOT, documents, lines_of

MARK = re.compile(r"^\s*<!-- (not run|fails): (.+?) -->\s*$")
REASONS = ("needs a GPU", "needs the network", "run by .ci/run ")
COMMAND = re.compile(r"^ {4}(?:[A-Z_]+=\S+ )*(?:cmake|ctest|\./|python3?|diff|git|ninja|make|pip|patch|ncu|nsys)\b")


@dataclasses.dataclass(frozen=True)
class Block:
    path: pathlib.Path
    line: int  # of the fence
    text: str
    kind: str = ""  # "", "not run" or "fails"
    reason: str = ""

    @property
    def place(self):
        within = self.path.is_relative_to(ROOT)
        return f"{self.path.relative_to(ROOT) if within else self.path}:{self.line}"


def blocks_of(path):
    """The command blocks of a document, in order."""
    found, before, body = [], "", None
    for number, line, code in lines_of(path.read_text(encoding="utf-8")):
        is_fence = line.lstrip().startswith("```")
        if body is None and code == "sh" and is_fence:
            mark = MARK.match(before)
            body, start = [], (number, *((mark[1], mark[2]) if mark else ("", "")))
        elif body is not None and is_fence:
            found.append(Block(path, start[0], "\n".join(body) + "\n", start[1], start[2]))
            body = None
        elif body is not None:
            body.append(line)
        before = line
    return found


def indented_commands(path):
    """Lines of commands in blocks that are not fenced, which nothing would run."""
    text = path.read_text(encoding="utf-8")
    return [number for number, line, code in lines_of(text) if code == "indented" and COMMAND.match(line)]


def copy_of_the_sources(directory):
    """What git tracks or would track, and a repository around it, so that commands that ask git find one."""
    listing = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=True,
    )
    for name in listing.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name)


def run_block(block, directory):
    """Whether the block did what its mark says; prints what it did when it did not."""
    if block.kind == "not run":
        print(f"aside  {block.place}: {block.reason}")
        return True
    began = time.monotonic()
    # No terminal and no input: what asks must take no answer for an answer.
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text], cwd=directory, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    right = (ran.returncode != 0) == (block.kind == "fails")
    print(f"{'ok    ' if right else 'FAILED'} {block.place} ({time.monotonic() - began:.0f} s)", flush=True)
    if not right:
        print(f"{block.text}ended with {ran.returncode}:\n{ran.stdout[-3000:]}")
    return right


def run(paths, directory):
    copy_of_the_sources(directory)
    wrong = 0
    for path in paths:
        for block in blocks_of(path):
            wrong += not run_block(block, directory)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true")
    what.add_argument("--run", action="store_true")
    parser.add_argument("--copy", type=pathlib.Path, help="where the copy goes; a temporary folder otherwise")
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="documents; all of them otherwise")
    arguments = parser.parse_args()
    paths = [path.resolve() for path in arguments.files] or documents()
    if arguments.list:
        for block in (block for path in paths for block in blocks_of(path)):
            print(f"{block.place}: {block.kind or 'run'}{': ' + block.reason if block.reason else ''}")
            print(re.sub(r"^", "    ", block.text.rstrip("\n"), flags=re.MULTILINE))
        return 0
    if arguments.copy:
        arguments.copy.mkdir(parents=True, exist_ok=True)
        wrong = run(paths, arguments.copy.resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="flash-steps-") as directory:
            wrong = run(paths, pathlib.Path(directory))
    print(f"{wrong} blocks did not do what they should" if wrong else "every block did what it should")
    return int(wrong > 0)


if __name__ == "__main__":
    os.environ.pop("STEP", None)
    sys.exit(main())
