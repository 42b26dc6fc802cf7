"""Exercises, both ways: a blank compiles and fails a test that names it, the solution passes; hints exist; a reader's
file is never written over.

    test_exercises.py BUILD          the rules, and the reader's way through one step
    test_exercises.py BUILD --all    every blank of every step, alone and together, and not of a few only
"""

import contextlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import exercise as reader
from exercises import BLANK, HINT, ROOT, BadVariant, all_exercises, read_exercise
from workbench import Tree

HERE = pathlib.Path(__file__).resolve().parent
EXERCISES = all_exercises()
BUILD = None
TREE = None


def cases_of(exercise):
    """The names of the step's test cases."""
    program = next(TREE.directory.glob(f"steps/{exercise.step_dir.name}/step{exercise.number}_test"))
    listed = subprocess.run([program, "-ltc", "-ntc"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if not line.startswith(("[doctest]", "="))]


def with_hints(exercise, name, filled):
    """The text of a file with one blank filled below its hints, which are left where they are."""
    text = ""
    for marks, before, after in exercise.pieces(name):
        if filled not in marks:
            text += before
        else:
            text += "".join(line for line in before.splitlines(keepends=True) if line.lstrip().startswith("//")) + after
    return text


class Rules(unittest.TestCase):
    def test_every_step_has_an_exercise(self):
        steps = {path.parent.name[:2] for path in ROOT.glob("steps/[0-9][0-9]_*/README.md")}
        self.assertGreaterEqual(len(steps), 9)
        self.assertEqual(set(EXERCISES), steps)

    def test_every_blank_has_numbered_hints_and_a_test_that_points_to_it(self):
        for number, exercise in EXERCISES.items():
            hints = exercise.hints()
            pointed_at = {blank for _, blanks in exercise.tests for blank in blanks}
            with self.subTest(step=number):
                self.assertEqual(sorted(hints), list(range(1, len(hints) + 1)))
                self.assertEqual(pointed_at, set(hints))
                text = "".join(exercise.blanked(name) for name in exercise.changed)
                marks = sorted(int(number) for number in BLANK.findall(text))
                self.assertEqual(marks, sorted(hints), "each blank has one mark, followed by its task")
            for blank, given in hints.items():
                with self.subTest(step=number, blank=blank):
                    self.assertEqual([n for _, n, _ in given], [f"{blank}.{i + 1}" for i in range(len(given))])
                    self.assertGreater(len(given), 0)

    def test_a_blank_leaves_everything_else_as_it_is(self):
        for number, exercise in EXERCISES.items():
            for name in exercise.changed:
                with self.subTest(step=number, file=name):
                    self.assertEqual(exercise.with_blanks(name, ()), exercise.solution(name))
                    everything = exercise.with_blanks(name, range(1, 100))
                    self.assertEqual(everything, exercise.blanked(name))
                    self.assertNotIn("YOUR TURN", exercise.solution(name))

    def test_every_test_that_is_named_exists(self):
        for number, exercise in EXERCISES.items():
            cases = cases_of(exercise)
            self.assertGreater(len(cases), 0)
            for beginning, _ in exercise.tests:
                with self.subTest(step=number, test=beginning):
                    self.assertTrue(any(case.startswith(beginning) for case in cases))

    def test_no_line_of_an_exercise_is_longer_than_a_line_of_code(self):
        for number, exercise in EXERCISES.items():
            for name in exercise.changed:
                for line in exercise.blanked(name).splitlines():
                    if BLANK.match(line) or HINT.match(line):
                        with self.subTest(step=number, line=line):
                            self.assertLessEqual(len(line), 110)

    def test_a_header_that_cannot_be_used_is_refused_by_name(self):
        for text, complaint in (
            ("Idea: x\nTest: a => 1\n", "there is no diff in it"),
            ("Test: a => 1\n\n--- a/x\n+++ b/x\n", "needs an 'Idea:' and a 'Test:'"),
            ("Idea: x\nTest: a\n\n--- a/x\n+++ b/x\n", "must be 'Idea: sentence' or 'Test: NAME => 1, 2'"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "exercise.patch")
                path.write_text(text, encoding="utf-8")
                with self.assertRaisesRegex(BadVariant, re.escape(complaint)):
                    read_exercise(path)


class Blanks(unittest.TestCase):
    """What a reader's files do to the step's tests."""

    def first_failure(self, exercise, open_blanks):
        """(name, blanks pointed to) of the first test that fails with these blanks open; it has to compile."""
        with tempfile.TemporaryDirectory(prefix="with space ") as folder:
            files = []
            for name in exercise.changed:
                files.append(pathlib.Path(folder, name))
                files[-1].write_text(exercise.with_blanks(name, open_blanks), encoding="utf-8")
            complaint = io.StringIO()
            try:
                with contextlib.redirect_stdout(complaint):
                    program = reader.build(exercise, files, TREE, reader.Terminal(io.StringIO()))
            except SystemExit:
                self.fail(complaint.getvalue())
            for name, blanks in exercise.tests:
                if reader.Outcome(program, [name]).failed:
                    return name, blanks
        return None, ()

    def check_step(self, number, alone):
        exercise = EXERCISES[number]
        every = sorted(exercise.hints())
        with self.subTest(step=number, blanks="all"):
            name, _ = self.first_failure(exercise, every)
            self.assertIsNotNone(name, "nothing fails with every blank open")
        with self.subTest(step=number, blanks="none"):
            if ALL:
                self.assertEqual(self.first_failure(exercise, []), (None, ()), "the solution fails")
        for blank in every if alone else ():
            with self.subTest(step=number, blank=blank):
                name, blanks = self.first_failure(exercise, [blank])
                self.assertIsNotNone(name, "nothing fails with this blank open")
                self.assertIn(blank, blanks, f"'{name}' does not point to it")

    def test_blanks_compile_and_each_alone_fails_a_test_that_points_to_it(self):
        for number in EXERCISES if ALL else ("01", "02"):
            self.check_step(number, alone=True)
        if not ALL:
            self.check_step("05", alone=False)


    def test_every_blank_is_open_at_first_and_closed_once_it_is_filled(self):
        for number, exercise in EXERCISES.items():
            blanks = sorted(exercise.hints())
            laid = {name: exercise.blanked(name) for name in exercise.changed}
            with self.subTest(step=number):
                self.assertEqual(reader.open_blanks(blanks, laid, exercise), blanks)
            for blank in blanks:  # with and without the hints
                others = [other for other in blanks if other != blank]
                filled = {name: exercise.with_blanks(name, others) for name in exercise.changed}
                kept = {name: with_hints(exercise, name, blank) for name in exercise.changed}
                with self.subTest(step=number, blank=blank):
                    self.assertEqual(reader.open_blanks(blanks, filled, exercise), others)
                    self.assertEqual(reader.open_blanks(blanks, kept, exercise), others)


class Way(unittest.TestCase):
    """The reader's way, through the script that the preset runs."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="my exercises ")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name, "made on first use")

    def run_step(self, step, **environment):
        return subprocess.run(
            [sys.executable, HERE / "exercise.py", "--build", BUILD, "--folder", self.folder],
            env={**os.environ, "STEP": step, **environment}, capture_output=True, text=True, cwd=self.folder.parent,
        )

    def run_with(self, step, name, contents):
        """The run of a step whose file holds these bytes; it fails, and not in the script."""
        self.run_step(step)
        (self.folder / EXERCISES[step].step_dir.name / name).write_bytes(contents)
        result = self.run_step(step)
        self.assertEqual(result.returncode, 1)
        self.assertNotIn("Traceback", result.stderr)
        return result

    def test_from_the_blank_to_the_next_step(self):
        exercise = EXERCISES["01"]
        first = self.run_step("01")
        file = self.folder / "01_safe_softmax" / "softmax.cpp"
        self.assertEqual(first.returncode, 1, first.stdout + first.stderr)
        self.assertIn("softmax.cpp, blanks: 3; look for YOUR TURN.", first.stdout)
        self.assertIn("[~] 01_safe_softmax        begun   <- this one", first.stdout)
        self.assertRegex(first.stdout, r"1/\d+  naive and safe softmax agree .* FAILED\n     expected  about 0\.125 ")
        self.assertRegex(first.stdout, r"\n     got       0\n")
        self.assertRegex(first.stdout, r"Read hint 3\.1, and if that is not enough 3\.2, 3\.3: .*softmax\.cpp:\d+\n")
        self.assertEqual(file.read_text(encoding="utf-8"), exercise.blanked("softmax.cpp"))

        # Half of the way: blank 3 filled in; the file stays as the reader left it.
        half_way = exercise.with_blanks("softmax.cpp", [1])
        file.write_text(half_way, encoding="utf-8")
        second = self.run_step("1")
        self.assertEqual(second.returncode, 1)
        self.assertNotIn("Laid", second.stdout)
        self.assertIn("Read hint 1.1", second.stdout)
        self.assertEqual(file.read_text(encoding="utf-8"), half_way)

        file.write_text("// my own\n" + exercise.solution("softmax.cpp"), encoding="utf-8")
        third = self.run_step("01_safe_softmax")
        self.assertEqual(third.returncode, 0, third.stdout + third.stderr)
        self.assertIn("all other tests of the step ... ok", third.stdout)
        self.assertIn(f"Done. 1 of {len(EXERCISES)} exercises pass.", third.stdout)
        self.assertIn("02_online_softmax/README.md", third.stdout)
        self.assertTrue(file.read_text(encoding="utf-8").startswith("// my own\n"))

        ladder = self.run_step("")
        self.assertIn("[x] 01_safe_softmax        done", ladder.stdout)
        self.assertIn("STEP=02 cmake --workflow --preset exercise", ladder.stderr)
        file.write_text(half_way, encoding="utf-8")
        self.assertIn("[~] 01_safe_softmax        begun", self.run_step("").stdout)

    def test_a_file_that_does_not_compile_is_shown_with_the_compilers_words(self):
        result = self.run_with("02", "softmax.cpp", b"int main( {\n")
        self.assertIn("It does not compile.", result.stdout)
        self.assertRegex(result.stdout, r"softmax\.cpp:1:\d+: error")
        self.assertNotIn("-fsanitize", result.stdout + result.stderr)

    def test_letters_that_are_no_UTF_8_are_shown_as_the_compiler_met_them(self):
        self.assertIn("It does not compile.", self.run_with("02", "softmax.cpp", b"int \xe9t\xe9 = ;\n").stdout)

    def test_progress_of_another_shape_counts_as_none(self):
        self.folder.mkdir()
        (self.folder / "progress.json").write_text("[]", encoding="utf-8")
        self.assertIn("[ ] 01_safe_softmax        to do   <- this one", self.run_step("").stdout)

    def test_a_folder_that_cannot_be_made_is_one_sentence(self):
        self.folder = pathlib.Path("/dev/null")
        result = self.run_step("01")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^[^\n]*/dev/null/01_safe_softmax'\n$")

    def test_an_empty_file_is_not_given_the_solutions_functions(self):
        self.assertIn("It compiles but does not link", self.run_with("01", "softmax.cpp", b"").stdout)

    def test_what_the_judge_found_is_shown_as_expected_and_got(self):
        exercise = EXERCISES["03"]
        self.run_step("03")
        file = self.folder / "03_tiled_attention" / "attention.cpp"
        file.write_text(exercise.with_blanks("attention.cpp", [2]), encoding="utf-8")
        output = self.run_step("03").stdout
        self.assertRegex(output, r"FAILED\n     expected  -46340\.9\d* \+- \S+\n     got       -inf\n     on        A1: ")
        self.assertIn("Read hint 2.1", output)

    def test_a_missing_or_wrong_STEP_says_what_to_type(self):
        for step, sentence in (
            ("", "STEP says which exercise: STEP=01 cmake --workflow --preset exercise"),
            ("12", "STEP is '12'; the steps with an exercise are 01 to "),
            ("softmax", "STEP is 'softmax'; the steps with an exercise are 01 to "),
        ):
            result = self.run_step(step)
            self.assertEqual(result.returncode, 1)
            self.assertIn(sentence, result.stderr)
            self.assertFalse(self.folder.exists())

    def test_a_test_that_dies_or_never_ends_is_a_failure(self):
        exercise = EXERCISES["02"]
        self.run_step("02")
        file = self.folder / "02_online_softmax" / "softmax.cpp"
        dying = exercise.solution("softmax.cpp").replace(
            "State update(State state, float x) {", "State update(State state, float x) {\n    __builtin_trap();"
        )
        file.write_text(dying, encoding="utf-8")
        result = self.run_step("02")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"FAILED\n     expected .*\n     got +.*(SIGILL|SIGTRAP|signal|died)")

    def test_no_colour_without_a_terminal(self):
        self.assertNotIn("\033", self.run_step("01", NO_COLOR="").stdout)


if __name__ == "__main__":
    ALL = "--all" in sys.argv
    rest = [argument for argument in sys.argv[1:] if argument != "--all"]
    BUILD = pathlib.Path(rest.pop(0)).resolve()
    if not (BUILD / "build.ninja").is_file() or not shutil.which("ninja"):
        print("SKIP: exercises are built with Ninja, and this tree is not")
        sys.exit(77)
    TREE = Tree(BUILD)
    unittest.main(argv=[sys.argv[0], *rest])
