"""The questions and answers of the lessons' Predict sections against what predict computes.

    test.py PREDICT        the program
"""

import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ""
NOT_KNOWN = "not known to this build"


def lessons():
    return {path.parent.name[:2]: path for path in sorted((ROOT / "steps").glob("[0-9][0-9]_*/README.md"))}


def items(text):
    """A numbered list as one line per item, by number."""
    found = {}
    for line in text.splitlines():
        if match := re.match(r"(\d+)\. (.*)", line):
            number = int(match[1])
            found[number] = match[2]
        elif found and line.startswith("   "):
            found[number] += " " + line.strip()
    return found


def predict_section(path):
    """Questions and answers of a lesson, by number."""
    section = path.read_text(encoding="utf-8").split("\n## Predict\n", 1)[1].split("\n## ", 1)[0]
    questions, answers = section.split("<details>", 1)
    return items(questions), items(answers)


def run(*arguments, given=""):
    # From a directory that has nothing to do with the project.
    with tempfile.TemporaryDirectory() as elsewhere:
        return subprocess.run([PROGRAM, *arguments], input=given, capture_output=True, text=True, cwd=elsewhere)


def on_a_terminal(**environment):
    """What predict writes to a terminal."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment}
    with tempfile.TemporaryDirectory() as elsewhere:
        process = subprocess.Popen(
            [PROGRAM, "--answers", "--step", "01"], stdin=subprocess.DEVNULL, stdout=theirs, cwd=elsewhere, env=variables
        )
        os.close(theirs)
        written = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            written += piece
        os.close(ours)
        process.wait()
    return written.decode()


def computed(output):
    """{question: [text after 'name: ', ...]} of one step's output."""
    found = {}
    for line in output.splitlines():
        if match := re.match(r"(\d+)\. ", line):
            numbers = found[int(match[1])] = []
        elif line.startswith("   "):
            numbers.append(line.strip().split(": ", 1)[1])
    return found


def holds(text, number):
    """Whether a number stands in a text, not as a part of a longer one; with or without separators."""
    text, number = text.replace(",", ""), number.replace(",", "")
    return re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", text) is not None


class Lessons(unittest.TestCase):
    def test_every_answer_of_a_lesson_is_the_one_computed(self):
        asked = 0
        unknown = 0
        self.assertGreaterEqual(len(lessons()), 9)
        for step, path in lessons().items():
            questions, answers = predict_section(path)
            result = run("--answers", "--step", step)
            if result.returncode == 2:
                print(f"SKIP: {result.stderr.strip()}")
                continue
            self.assertEqual(result.returncode, 0, result.stderr)
            numbers = computed(result.stdout)
            with self.subTest(step=step):
                self.assertGreaterEqual(len(questions), 2)
                self.assertEqual(sorted(questions), sorted(answers))
                self.assertEqual(sorted(questions), sorted(numbers))
            for question, texts in numbers.items():
                self.assertGreater(len(texts), 0)
                for text in texts:
                    if text.startswith(NOT_KNOWN):
                        unknown += 1
                        continue
                    asked += 1
                    with self.subTest(step=step, question=question, computed=text):
                        self.assertTrue(holds(answers[question], text.split(" ")[0]), answers[question])
        self.assertGreater(asked, 0)
        print(f"{asked} numbers compared")
        if unknown:
            print(f"SKIP: {unknown} numbers need the emulator's counters, which this build has not")

    def test_the_words_of_a_question_are_the_lessons(self):
        questions, _ = predict_section(lessons()["05"])
        output = run("--answers", "--step", "05").stdout
        for number, question in questions.items():
            self.assertIn(f"{number}. {question}\n", output)


class Terminal(unittest.TestCase):
    def test_a_prediction_is_compared_by_its_ratio(self):
        output = run("--step", "01", given="22.1875\n0\n1/2\n").stdout
        self.assertIn("11.09375 (computed by step 01's naive_softmax); you said 22.1875, ratio 2\n", output)
        self.assertIn("you said 0\n", output)
        self.assertIn("0.00048828 (computed by step 01's naive_softmax); you said 0.5, ratio 1.02e+03\n", output)
        self.assertIn("Within 5 %: 1 of 3.", output)

    def test_near_is_within_five_percent(self):
        for factor, near in ((0.94, 0), (0.96, 1), (1.04, 1), (1.06, 0)):
            output = run("--step", "01", given=f"{11.09375 * factor}\n\n\n").stdout
            self.assertIn(f"Within 5 %: {near} of 1.", output)

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([PROGRAM, "--answers", "--step", "01"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((result.returncode, result.stderr), (1, "predict: cannot write to standard output\n"))

    def test_what_is_no_number_is_asked_for_again_and_an_empty_line_skips(self):
        output = run("--step", "1", given="eleven\n72 16\n 11.09375 \n\n1/0\n1 / 2,048\n").stdout
        self.assertIn("'72 16' is not a number; write", output)
        self.assertIn("'eleven' is not a number; write", output)
        self.assertIn("'1/0' is not a number; write", output)
        self.assertIn("Within 5 %: 2 of 2.", output)

    def test_the_end_of_the_input_and_q_stop_without_an_error(self):
        for given in ("", "11\n", "q\n", "q\r\n", "+11"):
            result = run(given=given)
            self.assertEqual(result.returncode, 0)
            self.assertTrue(result.stdout.endswith("Stopped. With --answers predict shows the rest.\n"))

    def test_an_unknown_step_or_option_is_refused_in_a_sentence(self):
        for arguments, sentence in (
            (("--step", "77"), "there are no questions for step 77; steps with questions are 01 to "),
            (("--step",), "predict does not know '--step' without a number"),
            (("--loud",), "predict does not know '--loud'"),
        ):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(sentence, result.stderr)
            self.assertEqual(result.stdout, "")

    def test_help_is_printed_and_nothing_else(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("predict --step 05", result.stdout)

    def test_a_terminal_sees_bold_numbers_and_that_something_is_counted_and_NO_COLOR_is_respected(self):
        self.assertIn("\033[1m11.09375\033[0m", on_a_terminal())
        self.assertIn("counting ...", on_a_terminal())
        for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            shown = on_a_terminal(**environment)
            self.assertIn("11.09375", shown)
            self.assertNotIn("\033", shown)

    def test_no_colour_without_a_terminal(self):
        self.assertNotIn("\033", run("--answers").stdout)


class Checkers(unittest.TestCase):
    def test_a_number_is_found_as_a_whole_only(self):
        self.assertTrue(holds("**12 blocks, 36 rows.**", "12"))
        self.assertTrue(holds("it is 1/2048", "2,048"))
        self.assertFalse(holds("it is 120 or 1.12", "12"))
        self.assertFalse(holds("12.5 blocks", "12"))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
