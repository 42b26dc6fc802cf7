"""Climbs the ladder: runs every step's bench program, which checks the step and then measures it, and ends with the
ladder's table, a results file and the pictures. Needs Python alone; the pictures need matplotlib.

    tour.py [--build DIR] [--full] [--out FILE]
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import ladder
import results
import with_matplotlib
from command_line import whole_numbers

SKIPPED = 77
TEXT = {"encoding": "utf-8", "errors": "replace"}  # what a program prints


class TourError(Exception):
    """The tour cannot begin or go on; the text is one sentence."""


class OutputError(TourError):
    """Standard output takes no more."""

    def __init__(self, why):
        super().__init__(f"cannot write to standard output: {why}")


class Terminal:
    """One line that is overwritten while work goes on, colours, and plain lines where there is no terminal."""

    def __init__(self, stream):
        self.stream = stream
        self.is_live = stream.isatty()
        self.is_coloured = self.is_live and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.is_dirty = False

    def colour(self, text, code):
        return f"\033[{code}m{text}\033[0m" if self.is_coloured else text

    def write(self, text):
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError as error:
            raise OutputError(error.strerror) from None

    def line(self, text=""):
        self.write(("\r\033[K" if self.is_dirty else "") + text + "\n")
        self.is_dirty = False

    def progress(self, text):
        """Shown until the next line, on a terminal; a line of its own elsewhere."""
        if not self.is_live:
            self.line(text)
            return
        self.write("\r\033[K" + text[: shutil.get_terminal_size().columns - 1])
        self.is_dirty = True


def find_benches(build):
    """Step number -> bench program, in the order of the ladder."""
    found = {}
    build = build.resolve()  # a program named without a slash would be looked for on PATH
    for path in sorted(build.rglob("step[0-9][0-9]_bench")):
        if path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.name[4:6], path)
    return dict(sorted(found.items()))


class StepFailed(Exception):
    pass


def chosen(benches, steps):
    """The benches of some steps."""
    wanted = [f"{step:02}" for step in steps]
    for number in wanted:
        if number not in benches:
            raise TourError(f"there is no step {number}; there are {', '.join(benches)}")
    return {number: path for number, path in benches.items() if number in wanted}


def check_writable(out, images):
    """Of the results file and the directory of pictures (None: neither is chosen), before anything is measured."""
    try:
        if out and is_there(out) and not out.is_file():
            raise OSError(0, "it is a directory" if out.is_dir() else "it is no ordinary file")
        results.writable_directory(out.parent if out else results.LOCAL)
    except OSError as error:
        raise TourError(f"cannot write results to '{out or results.LOCAL}': {error.strerror}") from None
    try:
        if images:
            results.writable_directory(images)
    except OSError as error:
        raise TourError(f"cannot write pictures to '{images}': {error.strerror}") from None


def is_there(path):
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def show(terminal, lines):
    """What a bench prints. Returns the number of checks, the measuring errors and the failure, '' for none."""
    checks, errors, failure = 0, [], ""
    for line in lines:
        kind, _, text = line.rstrip("\n").partition(" ")
        text = text.strip()
        if kind == "check":
            checks += 1
            terminal.progress(f"  check    {text}")
        elif kind == "measure":
            terminal.line(f"  {terminal.colour('measure', '36')}  {text}")
        elif kind == "MEASURING":
            errors.append(text)
            terminal.line(terminal.colour(f"  {line.strip()}", "33"))
        elif kind == "FAILED":
            failure = text
        else:
            terminal.line(f"  {line.rstrip()}")
    return checks, errors, failure


def climb(terminal, number, place, bench, csv, is_full):
    """One step. Returns the measuring errors it reported."""
    command = [bench, "--csv", csv] + ([] if is_full else ["--tour"])
    try:
        shows = subprocess.run([bench, "--describe"], capture_output=True, **TEXT).stdout.strip()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=1, **TEXT)
    except OSError as error:
        raise StepFailed(f"step {number}: {bench} cannot be run: {error.strerror}") from None
    with process:
        try:
            terminal.line()
            terminal.line(terminal.colour(f"[{place}] step {number}: {shows}", "1"))
            checks, errors, failure = show(terminal, process.stdout)
        except BaseException:
            process.kill()
            raise
    status = process.returncode
    if status == SKIPPED:
        return errors
    if status != 0:
        raise StepFailed(failure or f"step {number}: its bench ended with status {status}")
    terminal.line(terminal.colour(f"  {checks} checks against the double-precision reference passed", "32"))
    return errors


def draw(csv, images, environment):
    """Draws the pictures of a results file. Returns the exit status and what was printed: a path or a reason for each."""
    here = pathlib.Path(__file__).resolve().parent
    command = [sys.executable, here / "with_matplotlib.py", "--venv", environment, here / "plot.py"]
    command += ["--out", relative(images), csv]
    done = subprocess.run(command, capture_output=True, **TEXT)
    return done.returncode, (done.stdout + done.stderr).strip()


def relative(path):
    """The shorter way to name a path: from here when it lies below."""
    path = pathlib.Path(path).resolve()
    here = pathlib.Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--build", type=pathlib.Path, default=results.ROOT / "build" / "default", help="build tree")
    parser.add_argument("--full", action="store_true", help="every size, for a results file to be committed: minutes")
    parser.add_argument("--out", type=pathlib.Path, help="results file; default: plots/data/local/<machine>.csv")
    parser.add_argument("--images", type=pathlib.Path, default=results.LOCAL / "img", help="where pictures go")
    parser.add_argument("--no-pictures", action="store_true", help="end with the table and the results file")
    parser.add_argument("--steps", type=whole_numbers, metavar="N,N,...", help="only these, such as 01,03")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    if sys.stdout is None:
        raise OutputError("it is closed")
    sys.stdout.reconfigure(errors="replace")
    terminal = Terminal(sys.stdout)
    benches = find_benches(options.build)
    if not benches:
        raise TourError(f"no bench programs in {options.build}; build them first: cmake --workflow --preset tour")
    if options.steps:
        benches = chosen(benches, options.steps)
    check_writable(options.out, None if options.no_pictures else options.images)

    began = time.monotonic()
    errors = []
    # Beside the results file, which it becomes: a rename works within one file system.
    place = options.out.resolve().parent if options.out else results.LOCAL
    with tempfile.TemporaryDirectory(prefix=".tour-", dir=place) as directory:
        csv = pathlib.Path(directory) / "results.csv"
        try:
            for count, (number, bench) in enumerate(benches.items(), 1):
                errors += climb(terminal, number, f"{count}/{len(benches)}", bench, csv, options.full)
        except StepFailed as failed:
            terminal.line(terminal.colour(f"FAILED   {failed}", "31"))
            return 1
        if not csv.exists():
            raise TourError("nothing was measured")
        rows = results.read(csv)
        out = (options.out or results.LOCAL / f"{re.sub(r'[^a-z0-9.-]', '-', rows[0]['machine'])}.csv").resolve()
        csv.replace(out)

    terminal.line()
    for title, header, lines, words in ladder.terminal(rows):
        terminal.line(terminal.colour(title, "1"))
        terminal.line(ladder.plain(header, lines))
        terminal.line(words + "\n" if words else "")
    terminal.line(ladder.measured_on(rows))
    for error in errors:
        terminal.line(terminal.colour(f"measuring error, not recorded: {error}", "33"))
    terminal.line(f"results    {relative(out)}")
    status = 0
    if not options.no_pictures:
        environment = options.build.resolve() / "venv"
        if not with_matplotlib.has_matplotlib(sys.executable) and not environment.exists():
            terminal.line(f"drawing    matplotlib is missing here and comes from PyPI first, into {relative(environment)}")
        terminal.progress("drawing")
        status, printed = draw(out, options.images, environment)
        skipped = [line for line in printed.splitlines() if ".svg skipped: " in line]
        for line in printed.splitlines():
            if line not in skipped:
                terminal.line(f"picture    {line}")
        if skipped:
            terminal.line(f"{len(skipped)} more pictures need results that this run does not have; plots/img has the committed ones")
    terminal.line(f"climbed and drawn in {time.monotonic() - began:.0f} s, the build not counted")
    return 0 if status == with_matplotlib.UNAVAILABLE else status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OutputError as error:
        if sys.stdout:  # what is still buffered would fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"error: {error}")
    except (TourError, results.ResultsError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted")
