"""Rules about the documents: links that lead somewhere, commands that can be run, lessons that are complete.

    test_documents.py [BUILD]      the build tree whose targets the commands name
"""

import contextlib
import io
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

import commands
import markdown
from markdown import ROOT

BUILD = None
LESSONS = sorted((ROOT / "steps").glob("[0-9][0-9]_*/README.md"))
# The lesson template.
SECTIONS = ("What you will see", "Predict", "The idea", "The code", "Run it", "Measure it", "Break it", "Your turn",
            "Explain it back", "Next")


def dead_links(path, text):
    """(line, target, what is wrong) of the links of a document."""
    found = []
    for line, target in markdown.links_of(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            parts = urllib.parse.urlsplit(target)
            good = parts.scheme == "mailto" or (parts.scheme == "https" and re.fullmatch(r"[\w.-]+\.[a-z]{2,}", parts.netloc))
            if not good:
                found.append((line, target, "is no address that begins with https://"))
            continue
        name, _, anchor = target.partition("#")
        file = path if not name else (path.parent / urllib.parse.unquote(name))
        if not file.exists():
            found.append((line, target, "does not exist"))
        elif anchor and file.suffix == ".md":
            known = markdown.anchors_of(text if not name else file.read_text(encoding="utf-8"))
            if anchor not in known:
                found.append((line, target, "names no heading there"))
    return found


class Links(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        documents = markdown.documents()
        self.assertGreater(len(documents), 10)
        for path in documents:
            for line, target, complaint in dead_links(path, path.read_text(encoding="utf-8")):
                with self.subTest(document=f"{path.relative_to(ROOT)}:{line}"):
                    self.fail(f"{target} {complaint}")

    def test_dead_links_are_found_and_living_ones_are_not(self):
        text = (
            "# A `b` (c)!\n## A b c\n[1](#a-b-c) [2](#a-b-c-1) [3](#a-b-d) [4](missing.md) [5](README.md#no-such)\n"
            "[6](http://x.org) [7](https://x.org/a#b) `[8](no.md)`\n\n    [9](no.md)\n\n```\n[10](no.md)\n```\n"
            "<a id=\"here\"></a> [11](#here) ![12](no.svg) [13](nowhere:x)\n"
        )
        found = [target for _, target, _ in dead_links(ROOT / "README.md", text)]
        self.assertEqual(found, ["#a-b-d", "missing.md", "README.md#no-such", "http://x.org", "no.svg", "nowhere:x"])


class Commands(unittest.TestCase):
    def blocks(self):
        return [block for path in markdown.documents() for block in commands.blocks_of(path)]

    def test_every_command_stands_in_a_fence(self):
        for path in markdown.documents():
            with self.subTest(document=str(path.relative_to(ROOT))):
                self.assertEqual(commands.indented_commands(path), [])

    def test_a_block_that_is_not_run_says_why(self):
        parts = re.search(r"^parts=\((.*?)\)", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.M)[1].split()
        for block in self.blocks():
            if block.kind != "not run":
                continue
            with self.subTest(block=block.place):
                self.assertTrue(block.reason.startswith(commands.REASONS), block.reason)
                if block.reason.startswith("run by .ci/run "):
                    named = re.split(r",? and |, ", block.reason.removeprefix("run by .ci/run "))
                    self.assertLessEqual(set(named), set(parts))

    def test_what_a_command_names_exists(self):
        presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))
        names = {kind: {p["name"] for p in presets[f"{kind}Presets"]} for kind in ("workflow", "build", "configure", "test")}
        targets = set()
        if BUILD:
            listed = subprocess.run(["ninja", "-C", BUILD, "-t", "targets", "all"], capture_output=True, text=True)
            targets = {line.split(":")[0].split("/")[-1] for line in listed.stdout.splitlines()}
        checked = 0
        for block in self.blocks():
            for line in block.text.splitlines():
                words = shlex.split(line, comments=True)
                with self.subTest(block=block.place, command=line):
                    for word, following in zip(words, [*words[1:], ""]):
                        if word == "--preset":
                            kind = {"--workflow": "workflow", "--build": "build"}.get(words[words.index(word) - 1], "configure")
                            self.assertIn(following, names[kind])
                        elif word == "-S" or (word == "python3" and not following.startswith("-")):
                            self.assertTrue((ROOT / following).exists(), following)
                        elif targets and word == "--target":
                            self.assertIn(following, targets)
                        elif targets and re.match(r"\./build/.*/\w+$", word):
                            self.assertIn(word.split("/")[-1], targets)
                        else:
                            continue
                        checked += 1
        self.assertGreater(checked, 20)

    def test_what_needs_no_build_runs_as_written(self):
        ran = 0
        with tempfile.TemporaryDirectory(prefix="with space ") as directory:
            copied = False
            for block in self.blocks():
                words = {line.split()[0] for line in block.text.splitlines() if line.strip()}
                if block.kind == "not run" or not words <= {"diff", "grep", "ls"}:
                    continue
                if not copied:
                    commands.copy_of_the_sources(pathlib.Path(directory))
                    copied = True
                with self.subTest(block=block.place):
                    self.assertTrue(commands.run_block(block, directory))
                ran += 1
        self.assertGreater(ran, 0)


class CommandReader(unittest.TestCase):
    """The reader of blocks finds what it looks for."""

    def test_blocks_marks_and_failures(self):
        text = "<!-- not run: needs a GPU -->\n```sh\nfalse\n```\n\n```sh\ntrue\nfalse\n```\n<!-- fails: always -->\n```sh\nfalse\n```\n```c\nint x;\n```\n"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x.md")
            path.write_text(text, encoding="utf-8")
            blocks = commands.blocks_of(path)
        self.assertEqual([(b.kind, b.text) for b in blocks],
                         [("not run", "false\n"), ("", "true\nfalse\n"), ("fails", "false\n")])
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.assertEqual([commands.run_block(block, ".") for block in blocks], [True, False, True])
        self.assertIn("needs a GPU", output.getvalue())
        self.assertIn("ended with 1", output.getvalue())


class Lessons(unittest.TestCase):
    def test_every_lesson_has_the_sections_of_the_template_in_their_order(self):
        self.assertGreaterEqual(len(LESSONS), 8)
        for path in LESSONS:
            headings = re.findall(r"^## (.*)$", markdown.prose_of(path.read_text(encoding="utf-8")), flags=re.M)
            with self.subTest(lesson=path.parent.name):
                self.assertEqual([h for h in headings if h in SECTIONS], list(SECTIONS))

    def test_every_lesson_gives_the_commands_that_build_it_alone_and_its_exercise(self):
        for path in LESSONS:
            step, number = path.parent.name, path.parent.name[:2]
            texts = [block.text for block in commands.blocks_of(path)]
            alone = f"cmake -S steps/{step} -B build/{number}\ncmake --build build/{number}\nctest --test-dir build/{number}\n"
            with self.subTest(lesson=step):
                self.assertIn(alone, texts)
                self.assertIn(f"STEP={number} cmake --workflow --preset exercise\n", texts)
                self.assertTrue(any(f"predict --step {number}" in text for text in texts))

    def test_explain_it_back_folds_an_answer_under_every_question(self):
        for path in LESSONS:
            section = path.read_text(encoding="utf-8").split("\n## Explain it back\n")[1].split("\n## ")[0]
            questions = re.findall(r"^\d+\. .*$", section, flags=re.M)
            answers = re.findall(r"<details><summary>Answer</summary>\s*\S.*?</details>", section, flags=re.S)
            with self.subTest(lesson=path.parent.name):
                self.assertGreaterEqual(len(questions), 3)
                self.assertEqual(len(questions), len(answers))

    def test_the_size_of_the_diff_to_the_step_before_is_the_one_stated(self):
        stated = 0
        for lesson in LESSONS:
            match = re.search(r"some (\d+) lines go, and some (\d+) come", lesson.read_text(encoding="utf-8"))
            if not match:
                continue
            stated += 1
            kernel = lesson.with_name("attention.cu")
            before = next(ROOT.glob(f"steps/{int(lesson.parent.name[:2]) - 1:02}_*/attention.cu"))
            lines = subprocess.run(["diff", before, kernel], capture_output=True, text=True).stdout.splitlines()
            for sign, number in zip("<>", match.groups()):
                with self.subTest(lesson=lesson.parent.name, lines=sign):
                    self.assertAlmostEqual(sum(line.startswith(sign) for line in lines), int(number), delta=5)
        self.assertGreaterEqual(stated, 3)

    def test_what_it_shows_first_is_a_picture(self):
        for path in LESSONS:
            section = path.read_text(encoding="utf-8").split("\n## What you will see\n")[1].split("\n## ")[0]
            with self.subTest(lesson=path.parent.name):
                self.assertRegex(section, r"!\[[^\]]+\]\([^)]+\.svg\)")


def anchored_terms():
    """{anchor: forms} of the glossary's words that lessons introduce: those with an anchor of their own."""
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    found = {}
    for anchor, cell in re.findall(r"^\| <a id=\"([\w-]+)\"></a>([^|]+) \|", text, flags=re.M):
        found[anchor] = [form.strip().removeprefix("bytes ") for form in cell.split(",")]
    return found


def readable(text):
    """A lesson without code, headings, pictures and generated lists; what is left keeps its marks."""
    text = re.sub(r"<!-- generated:.*?<!-- /generated -->|<!-- breaks -->.*?<!-- /breaks -->", "", text, flags=re.S)
    return re.sub(r"^#.*$|!\[[^\]]*\]\([^)]*\)", "", markdown.prose_of(text), flags=re.M)


def first_use(forms, texts):
    """(name of the text, match, text) where one of the forms stands first; None if nowhere."""
    one_of = "|".join(re.escape(form) for form in forms)
    for name, text in texts.items():
        addresses = [found.span() for found in re.finditer(r"\]\([^)]*\)", text)]
        for match in re.finditer(rf"(?<![\w-])(?:{one_of})(?:s|es)?(?![\w-])", text, flags=re.I):
            if not any(begin < match.start() < end for begin, end in addresses):
                return name, match, text
    return None


def is_introduced(match, text, anchor):
    """Whether the word is emphasised there, or part of a link to its place in the glossary."""
    line_start, line_end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    line = text[line_start:line_end]
    begin, end = match.start() - line_start, match.end() - line_start
    for found in re.finditer(rf"\[[^\]]*\]\([^)]*glossary\.md#{anchor}\)|\*\*[^*]+\*\*|\*[^*\s][^*]*\*", line):
        if found.start() <= begin and end <= found.end():
            return True
    return False


class Glossary(unittest.TestCase):
    def test_a_word_of_the_machine_is_explained_or_linked_where_it_is_first_used(self):
        texts = {path.parent.name: readable(path.read_text(encoding="utf-8")) for path in LESSONS}
        terms = anchored_terms()
        self.assertGreater(len(terms), 20)
        for anchor, forms in terms.items():
            with self.subTest(word=forms[0]):
                use = first_use(forms, texts)
                self.assertIsNotNone(use, "no lesson uses it")
                name, match, text = use
                around = text[max(0, match.start() - 50) : match.end() + 50].replace("\n", " ")
                self.assertTrue(is_introduced(match, text, anchor), f"{name}: '...{around}...' #{anchor}")

    def test_no_word_stands_in_the_glossary_twice(self):
        text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
        words = re.findall(r"^\| (?:<a id=\"[\w-]+\"></a>)?([^|]+) \|", text, flags=re.M)
        words = [word for word in words if word not in ("word", "this project", "Triton")]
        self.assertEqual(sorted(word for word in set(words) if words.count(word) > 1), [])

    def test_the_finder_of_first_uses_finds_them(self):
        texts = {"a": "A `warp` and [a link](warp.md#warp).\n", "b": "Then [warps](../x/glossary.md#warp) come.\n", "c": "a warp\n"}
        name, match, text = first_use(["warp"], {key: markdown.prose_of(value) for key, value in texts.items()})
        self.assertEqual(name, "b")
        self.assertTrue(is_introduced(match, text, "warp"))
        self.assertFalse(is_introduced(match, text, "lane"))
        self.assertFalse(is_introduced(re.search("warp", "a warp, *then* more\n"), "a warp, *then* more\n", "warp"))


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
