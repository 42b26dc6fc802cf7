"""An exercise: one patch in steps/NN_name/exercise.patch that blanks the step's idea out, with a header above the diff.

    Idea: one sentence        what is to be written
    Test: NAME => 1, 3        as often as needed, easiest first: the test cases whose names begin with NAME, and the
                              blanks that a failure points to

A blank is a comment `// YOUR TURN 2. ...` with at least one `//   Hint 2.1: ...` below it, beside the code to replace.
"""

import dataclasses
import difflib
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "breaks"))

from variants import ROOT, BadVariant, header_fields  # noqa: E402

BLANK = re.compile(r"^\s*// YOUR TURN (\d+)\. \S", flags=re.MULTILINE)
HINT = re.compile(r"^\s*//   Hint (\d+)\.(\d+): (.*)$")


@dataclasses.dataclass(frozen=True)
class Exercise:
    path: pathlib.Path  # of the patch
    idea: str
    tests: tuple  # (beginning of a test case's name, (blank, ...)), easiest first
    diff: str
    name = "exercise"

    @property
    def step_dir(self):
        return self.path.parent

    @property
    def number(self):
        return self.step_dir.name[:2]

    @property
    def changed(self):
        """Names of the step's files that have blanks."""
        return re.findall(r"^\+\+\+ b/(\S+)", self.diff, flags=re.MULTILINE)

    def solution(self, name):
        return (self.step_dir / name).read_text(encoding="utf-8")

    def blanked(self, name):
        """The text of a file with its blanks."""
        # No fuzz: a patch whose surroundings have changed must be looked at again.
        patched = subprocess.run(
            ["patch", "--silent", "--fuzz=0", "-o", "-", self.step_dir / name],
            input=self.diff_of(name), capture_output=True, text=True,
        )
        if patched.returncode:
            raise BadVariant(f"{self.path} does not apply to {name}: {(patched.stdout + patched.stderr).strip()}")
        return patched.stdout

    def diff_of(self, name):
        return "--- a/" + next(
            part for part in self.diff.split("\n--- a/") if re.search(rf"^\+\+\+ b/{re.escape(name)}$", part, re.M)
        ).removeprefix("--- a/") + "\n"

    def hints(self):
        """{blank: [(file name, "2.1", text), ...]}."""
        found = {}
        for name in self.changed:
            for line in self.blanked(name).splitlines():
                if match := HINT.match(line):
                    found.setdefault(int(match[1]), []).append((name, f"{match[1]}.{match[2]}", match[3]))
                elif (match := BLANK.match(line)) is not None:
                    found.setdefault(int(match[1]), [])
        return found

    def pieces(self, name):
        """What the blanks change, as [(blanks, text with the blank, text of the solution)]; ((), same, same) between
        them. A change without a mark of its own belongs to the blank before it."""
        blank = self.blanked(name).splitlines(keepends=True)
        solved = self.solution(name).splitlines(keepends=True)
        found, latest = [], ()
        matcher = difflib.SequenceMatcher(None, blank, solved, autojunk=False)
        for tag, i, i_end, j, j_end in matcher.get_opcodes():
            before, after = "".join(blank[i:i_end]), "".join(solved[j:j_end])
            if tag == "equal":
                found.append(((), before, after))
                continue
            marks = tuple(int(number) for number in BLANK.findall(before))
            latest = marks or latest
            found.append((latest, before, after))
        return found

    def with_blanks(self, name, wanted):
        """The text of a file in which only some of the blanks are open."""
        return "".join(before if set(marks) & set(wanted) else after for marks, before, after in self.pieces(name))


def read_exercise(path):
    path = pathlib.Path(path)
    header, _, diff = path.read_text(encoding="utf-8").partition("\n--- a/")
    if not diff:
        raise BadVariant(f"{path}: there is no diff in it")
    idea, tests = "", []
    for name, value in header_fields(path, header):
        if name == "Idea" and not idea:
            idea = value
            continue
        beginning, arrow, blanks = value.rpartition(" => ")
        if name != "Test" or not arrow or not re.fullmatch(r"\d+(, \d+)*", blanks):
            raise BadVariant(f"{path}: '{name}: {value}' must be 'Idea: sentence' or 'Test: NAME => 1, 2'")
        tests.append((beginning, tuple(int(blank) for blank in blanks.split(", "))))
    if not idea or not tests:
        raise BadVariant(f"{path}: the header needs an 'Idea:' and a 'Test:'")
    return Exercise(path, idea, tuple(tests), "--- a/" + diff)


def all_exercises(root=ROOT):
    """{number: exercise}, in order."""
    paths = sorted(root.glob("steps/[0-9][0-9]_*/exercise.patch"))
    return {path.parent.name[:2]: read_exercise(path) for path in paths}
