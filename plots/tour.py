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
import time

import ladder
import results

SKIPPED = 77


class Terminal:
    """One line that is overwritten while work goes on, colours, and plain lines where there is no terminal."""

    def __init__(self, stream):
        self.stream = stream
        self.is_live = stream.isatty()
        self.is_coloured = self.is_live and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.is_dirty = False

    def colour(self, text, code):
        return f"\033[{code}m{text}\033[0m" if self.is_coloured else text

    def line(self, text=""):
        if self.is_dirty:
            self.stream.write("\r\033[K")
            self.is_dirty = False
        self.stream.write(text + "\n")
        self.stream.flush()

    def progress(self, text):
        """Shown until the next line, on a terminal; a line of its own elsewhere."""
        if not self.is_live:
            self.line(text)
            return
        self.stream.write("\r\033[K" + text[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()
        self.is_dirty = True


def find_benches(build):
    """Step number -> bench program, in the order of the ladder."""
    found = {}
    for path in sorted(build.rglob("step[0-9][0-9]_bench")):
        if path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.name[4:6], path)
    return dict(sorted(found.items()))


class StepFailed(Exception):
    pass


def climb(terminal, number, place, bench, csv, is_full):
    """One step. Returns the measuring errors it reported."""
    shows = subprocess.run([bench, "--describe"], capture_output=True, text=True).stdout.strip()
    terminal.line()
    terminal.line(terminal.colour(f"[{place}] step {number}: {shows}", "1"))
    command = [bench, "--csv", csv] + ([] if is_full else ["--tour"])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
    checks, errors, failure = 0, [], ""
    for line in process.stdout:
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
    status = process.wait()
    if status == SKIPPED:
        return errors
    if status != 0:
        raise StepFailed(failure or f"step {number}: its bench ended with status {status}")
    terminal.line(terminal.colour(f"  {checks} checks against the double-precision reference passed", "32"))
    return errors


def draw(csv, images, environment):
    """Draws the pictures of a results file. Returns what was printed: a path or a reason for each."""
    here = pathlib.Path(__file__).resolve().parent
    command = [sys.executable, here / "with_matplotlib.py", "--venv", environment, here / "plot.py"]
    command += ["--out", relative(images), csv]
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()


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
    parser.add_argument("--steps", help="only these, such as 01,03")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    terminal = Terminal(sys.stdout)
    benches = find_benches(options.build)
    if options.steps:
        wanted = options.steps.split(",")
        benches = {number: path for number, path in benches.items() if number in wanted}
    if not benches:
        sys.exit(f"no bench programs in {options.build}; build them first: cmake --workflow --preset tour")

    began = time.monotonic()
    (options.out.parent if options.out else results.LOCAL).mkdir(parents=True, exist_ok=True)
    csv = (options.out or results.LOCAL / "unfinished").with_suffix(".part")
    csv.unlink(missing_ok=True)
    errors = []
    try:
        for place, (number, bench) in enumerate(benches.items(), 1):
            errors += climb(terminal, number, f"{place}/{len(benches)}", bench, csv, options.full)
    except StepFailed as failed:
        terminal.line(terminal.colour(f"FAILED   {failed}", "31"))
        csv.unlink(missing_ok=True)
        return 1
    if not csv.exists():
        sys.exit("nothing was measured")

    rows = results.read(csv)
    out = options.out or results.LOCAL / f"{re.sub(r'[^a-z0-9.-]', '-', rows[0]['machine'])}.csv"
    csv.replace(out)
    terminal.line()
    terminal.line(terminal.colour("The ladder", "1"))
    terminal.line(ladder.plain(*ladder.ladder(rows)))
    terminal.line()
    terminal.line(ladder.measured_on(rows))
    for error in errors:
        terminal.line(terminal.colour(f"measuring error, not recorded: {error}", "33"))
    terminal.line(f"results    {relative(out)}")
    if not options.no_pictures:
        terminal.progress("drawing")
        for line in draw(out, options.images, options.build / "venv").splitlines():
            terminal.line(f"picture    {line}")
    terminal.line(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except results.ResultsError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted")
