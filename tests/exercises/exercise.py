#!/usr/bin/env python3
"""A step's exercise: builds your file in the place of the solution and runs the step's own tests, easiest first.

    STEP=05 cmake --workflow --preset exercise

The first run lays the files, with blanks and hints, in exercises/05_flash_forward; git ignores that folder and nothing
is ever written over a file in it. Edit, run again. The run stops at the first test that fails and says which hint to
read; when all pass, the step is done. Without STEP the ladder is shown.

    exercise.py --build BUILD [--step 05] [--folder exercises]
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree

from exercises import BLANK, ROOT, BadVariant, all_exercises
from workbench import Tree, compile_command, filters, link_with, without_members

TIMEOUT = 300  # seconds for one test; the slowest takes some twenty
STATE = "progress.json"


class Terminal:
    def __init__(self, stream=sys.stdout):
        self.is_live = stream.isatty()
        self.is_coloured = self.is_live and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = min(110, shutil.get_terminal_size((100, 24)).columns)

    def paint(self, code, text):
        return f"\033[{code}m{text}\033[0m" if self.is_coloured else text

    def good(self, text):
        return self.paint("32", text)

    def bad(self, text):
        return self.paint("31;1", text)

    def wrapped(self, text, indent):
        return textwrap.fill(text, self.width, initial_indent=indent, subsequent_indent=indent)


def relative(path):
    """A path as the reader would type it, where that is shorter."""
    try:
        short = os.path.relpath(path)
    except ValueError:
        return str(path)
    return str(path) if short.startswith("..") else short


class Progress:
    """Which steps are done. Kept beside the reader's files: a step counts as done as long as the files are those that
    passed."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / STATE
        try:
            passed = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            passed = {}
        self.passed = passed if isinstance(passed, dict) else {}

    @staticmethod
    def digest(paths):
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()

    def files(self, exercise):
        return [self.folder / exercise.step_dir.name / name for name in exercise.changed]

    def is_done(self, exercise):
        paths = self.files(exercise)
        if not all(path.is_file() for path in paths):
            return False
        return self.passed.get(exercise.number) == self.digest(paths)

    def mark(self, exercise):
        self.passed[exercise.number] = self.digest(self.files(exercise))
        self.path.write_text(json.dumps(self.passed, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def show_ladder(exercises, progress, current, terminal):
    for number, exercise in exercises.items():
        begun = any(path.is_file() for path in progress.files(exercise))
        state = "done" if progress.is_done(exercise) else "begun" if begun else "to do"
        mark = {"done": terminal.good("x"), "begun": "~", "to do": " "}[state]
        pointer = terminal.paint("1", "  <- this one") if number == current else ""
        print(f"  [{mark}] {exercise.step_dir.name:22} {state:6}{pointer}")
    print()


def lay(exercise, folder):
    """Writes the files of the exercise that are not there yet. Returns the reader's files and what was written."""
    directory = folder / exercise.step_dir.name
    directory.mkdir(parents=True, exist_ok=True)
    files, written = [], []
    for name in exercise.changed:
        file = directory / name
        files.append(file)
        try:
            with open(file, "x", encoding="utf-8") as stream:
                stream.write(exercise.blanked(name))
            written.append(file)
        except FileExistsError:
            pass
    return files, written


def build(exercise, files, tree, terminal):
    """The step's test program with the reader's files in it; exits with the compiler's words when they do not
    compile."""
    target = f"step{exercise.number}_test"
    if not any(tree.directory.glob(f"**/{exercise.step_dir.name}/{target}")):
        sys.exit(f"{target} is not built in {relative(tree.directory)}; this builds it first: "
                 f"STEP={exercise.number} cmake --workflow --preset exercise")
    workplace = tree.directory / "exercises" / exercise.number
    workplace.mkdir(parents=True, exist_ok=True)
    objects = []
    for file in files:
        commands = [
            command
            for _, source, command in tree.objects_of({f"step{exercise.number}"}, exercise.step_dir, [file.name])
            if source.name == file.name
        ]
        output = workplace / f"{file.stem}.o"
        words = compile_command(commands[0], file, output, exercise.step_dir)
        # Half-finished work has unused names; they are no error here.
        words = [str(word).replace(",-Werror", "") for word in words if not str(word).startswith("-Werror")]
        if terminal.is_coloured:
            words[-4:-4] = ["-fdiagnostics-color=always"]
        made = subprocess.run(words, cwd=tree.directory, capture_output=True, text=True, errors="replace")
        if made.returncode:
            print(f"{terminal.bad('It does not compile.')} {relative(file)}:\n")
            lines = (made.stderr + made.stdout).replace(str(file), relative(file)).splitlines()
            print("\n".join(lines[:40]))
            if len(lines) > 40:
                print(f"... and {len(lines) - 40} more lines; begin with the first error")
            sys.exit(1)
        objects.append(output)
    program = workplace / target
    replaced = [(f"step{exercise.number}", file) for file in files]
    words = without_members(link_with(tree.link_command(target), objects, program), tree, replaced, workplace)
    made = subprocess.run(words, cwd=tree.directory, capture_output=True, text=True, errors="replace")
    if made.returncode:
        print(f"{terminal.bad('It compiles but does not link:')}\n\n{(made.stderr + made.stdout).strip()[:3000]}")
        sys.exit(1)
    return program


class Outcome:
    """What a run of some test cases reported."""

    def __init__(self, program, names, without=()):
        report = program.parent / "report.xml"
        report.unlink(missing_ok=True)
        words = [program, "-r=xml", f"-o={report}"]
        words += [f"-tc={filters(names)}"] if names else []
        words += [f"-tce={filters(without)}"] if without else []
        self.cases, self.failed, self.expected, self.got, self.where, self.case = 0, "", "", "", "", ""
        try:
            ran = subprocess.run(words, cwd=program.parent, capture_output=True, text=True, errors="replace",
                                 timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            self.failed, self.expected = "the run", f"an end within {TIMEOUT} seconds"
            self.got = "none: is there a loop that never ends?"
            return
        try:
            root = xml.etree.ElementTree.parse(report).getroot()
        except (OSError, xml.etree.ElementTree.ParseError):
            self.failed, self.expected = "the run", "a report"
            self.got = f"the program died ({ran.returncode}). {ran.stderr.strip()[-300:]}"
            return
        for case in root.iter("TestCase"):
            result = case.find("OverallResultsAsserts")
            if case.get("skipped") == "true" or result is None:
                continue
            self.cases += 1
            if not self.failed and result.get("test_case_success") != "true":
                self.read_failure(case)
        if not self.failed and ran.returncode:
            self.failed, self.expected = "the run", "exit status 0"
            self.got = f"{ran.returncode}. {(ran.stdout + ran.stderr).strip()[-300:]}"

    def read_failure(self, case):
        self.failed = case.get("name")
        self.read_assertion(case)
        # The judge's own words: what was computed, where, and what it found there.
        if judged := re.fullmatch(r"(.*?):? got (\S+), want (.+?)(?: \(twin [^)]*\))?", self.got):
            self.case, self.got, self.expected = judged.groups()
            self.case = self.case.removeprefix("| ")

    def read_assertion(self, case):
        for element in case.iter():
            if element.tag == "Exception":
                self.expected, self.got = "no exception", (element.text or "").strip()
                return
            if element.tag == "Message" and element.get("type") != "WARNING":
                self.expected, self.got = "no failure", " ".join("".join(element.itertext()).split())
                return
            if element.tag != "Expression" or element.get("success") == "true":
                continue
            original, expanded = ((element.findtext(tag) or "").strip() for tag in ("Original", "Expanded"))
            expanded = re.sub(r"Approx\( *(.*?) *\)", r"about \1", expanded)  # doctest's spelling
            expanded = re.sub(r" ==$", ' == ""', expanded)  # an empty text is printed as nothing
            self.where = f"{pathlib.Path(element.get('filename', '')).name}:{element.get('line')}"
            self.expected, self.got = original, expanded
            notes = [" ".join((note.text or "").split()) for note in element.iter("Info")]
            sides = expanded.rsplit(" == ", 1)
            if element.find("Exception") is not None:
                self.got = (element.findtext("Exception") or "").strip()
            elif expanded in ("true", "false") and notes:
                self.expected, self.got = original, notes[-1]
            elif len(sides) == 2 and sides[1].strip() in ('""', ""):
                self.expected, self.got = "the values of double precision", sides[0].strip().strip('"')
            elif len(sides) == 2:
                self.got, wanted = (side.strip() for side in sides)
                self.expected = f"{wanted}  ({original})"
                if self.got == wanted and "?" not in wanted:
                    self.got += ", which differs in digits that are not shown"
                if notes:
                    self.got += f"  ({'; '.join(notes)})"
            return


def code_lines(text):
    """Without comments, empty lines and indentation."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("//")]


def open_blanks(blanks, texts, exercise):
    """Those of the blanks that have a place which still reads as it was laid, in their order. texts: {file name: the
    reader's text}."""
    still_open = set()
    for name, text in texts.items():
        code = code_lines(text)
        pieces = exercise.pieces(name)
        lines = [code_lines(before) for _, before, _ in pieces]
        for i, (marks, _, after) in enumerate(pieces):
            if not marks or not (lines[i] or code_lines(after)):
                continue  # no code is wanted here
            # With what stands around it: a place may be blank to the last line.
            around = [lines[j] if 0 <= j < len(pieces) and not pieces[j][0] else [] for j in (i - 1, i + 1)]
            laid = [*around[0][-6:], *lines[i], *around[1][:6]]
            if any(code[at : at + len(laid)] == laid for at in range(len(code) - len(laid) + 1)):
                still_open.update(marks)
    return [blank for blank in blanks if blank in still_open]


def line_of(blank, files):
    """Where the reader's file has a blank's mark."""
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if (match := BLANK.match(line)) and int(match[1]) == blank:
                return f"{relative(file)}:{number}"
    return relative(files[0])


def explain(outcome, blanks, files, exercise, terminal):
    print(terminal.wrapped(f"expected  {outcome.expected}", "     "))
    print(terminal.wrapped(f"got       {outcome.got}", "     "))
    if outcome.case:
        print(terminal.wrapped(f"on        {outcome.case}", "     "))
    if outcome.where:
        print(f"     in        {outcome.where}")
    if blanks:
        texts = {file.name: file.read_text(encoding="utf-8", errors="replace") for file in files}
        still_open = open_blanks(blanks, texts, exercise)
        blank = still_open[0] if still_open else blanks[0]
        if len(blanks) > 1:
            left = f"; still open: {', '.join(map(str, still_open))}" if still_open else ""
            print(f"\n  This test needs the blanks {', '.join(map(str, blanks))} together{left}.")
        numbers = [number for _, number, _ in exercise.hints()[blank]]
        more = f", and if that is not enough {', '.join(numbers[1:])}" if len(numbers) > 1 else ""
        print(f"\n  Read hint {numbers[0]}{more}: {line_of(blank, files)}")


def run_tests(exercise, files, program, terminal):
    """Whether everything passes; stops at the first failure."""
    total = len(exercise.tests) + 1
    for place, (name, blanks) in enumerate([*exercise.tests, ("", ())], 1):
        title = name or "all other tests of the step"
        if terminal.is_live:
            print(f"  {place}/{total}  {title} ...", end="\r", flush=True)
        began = time.monotonic()
        outcome = Outcome(program, [name]) if name else Outcome(program, [], [test for test, _ in exercise.tests])
        took = time.monotonic() - began
        verdict = terminal.bad("FAILED") if outcome.failed else terminal.good("ok")
        print(f"  {place}/{total}  {title} ... {verdict}" + (f" ({took:.0f} s)" if took >= 2 else ""))
        if outcome.failed:
            if not name and outcome.failed != "the run":
                print(f"     {outcome.failed}")
            explain(outcome, blanks, files, exercise, terminal)
            return False
    return True


def title_of(exercise):
    return (exercise.step_dir / "README.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def wanted_step(given, exercises):
    """The number of a step as the exercises name it; exits with what to type where there is none."""
    known = f"the steps with an exercise are {min(exercises)} to {max(exercises)}"
    if not given:
        return None
    number = given.split("_")[0].zfill(2)
    if number not in exercises:
        sys.exit(f"STEP is '{given}'; {known}: STEP=05 cmake --workflow --preset exercise")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="build tree that has the step's test program")
    parser.add_argument("--step", default=os.environ.get("STEP", ""), help="two digits; $STEP where it is left out")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "exercises", help="where your files lie")
    arguments = parser.parse_args()
    terminal = Terminal()
    folder = arguments.folder.resolve()

    exercises = all_exercises()
    number = wanted_step(arguments.step, exercises)
    progress = Progress(folder)
    if number is None:
        current = next((n for n, exercise in exercises.items() if not progress.is_done(exercise)), None)
        show_ladder(exercises, progress, current, terminal)
        sys.exit(f"STEP says which exercise: STEP={current or '01'} cmake --workflow --preset exercise")
    exercise = exercises[number]
    print(f"\n{terminal.paint('1', title_of(exercise))}")
    print(terminal.wrapped(exercise.idea[0].upper() + exercise.idea[1:], "") + "\n")
    files, written = lay(exercise, folder)
    show_ladder(exercises, progress, number, terminal)
    for file in written:
        count = len(BLANK.findall(file.read_text(encoding="utf-8")))
        print(f"Laid {relative(file)}, blanks: {count}; look for YOUR TURN.")
    tree = Tree(arguments.build)
    print(f"Building {', '.join(relative(file) for file in files)} ...", flush=True)
    program = build(exercise, files, tree, terminal)
    print()
    if not run_tests(exercise, files, program, terminal):
        print(f"\n  Then again: STEP={number} cmake --workflow --preset exercise")
        sys.exit(1)
    progress.mark(exercise)
    done = sum(progress.is_done(each) for each in exercises.values())
    print(f"\n{terminal.good('Done.')} {done} of {len(exercises)} exercises pass. Compare with the solution:")
    for file in files:
        print("  " + shlex.join(["diff", relative(file), relative(exercise.step_dir / file.name)]))
    in_order = sorted(exercises, key=lambda n: (n < number, n))  # those after this one first
    following = next((n for n in in_order if not progress.is_done(exercises[n])), None)
    if following:
        print(f"Next: {relative(exercises[following].step_dir / 'README.md')}")


if __name__ == "__main__":
    try:
        main()
    except (BadVariant, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
