"""Rules about the sources that a compiler does not check. Only files that git tracks, or would track, count."""

import json
import pathlib
import re
import subprocess
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]

MAX_LINES = {"kernel": 300, "header": 250, "emulator": 1780}


def tracked(*suffixes):
    """Paths relative to the root; without git (a source archive) every file outside build directories."""
    listing = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
    )
    if listing.returncode == 0:
        names = [pathlib.Path(name.decode()) for name in listing.stdout.split(b"\0") if name]
    else:
        names = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
        names = [name for name in names if name.parts[0] not in ("build", ".venv")]
    return sorted(name for name in names if name.suffix in suffixes and (ROOT / name).is_file())


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def line_count(name):
    """Lines of code: blank lines and lines of comment alone are free."""
    return sum(1 for line in text(name).splitlines() if not re.fullmatch(r"\s*(//.*)?", line))


def dead_links(markdown, directory):
    """Relative link targets of a Markdown text that do not exist. Code is not looked at."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", markdown, flags=re.DOTALL)
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)", prose)
    targets += re.findall(r"<(?:img|source|a)\b[^>]*?\b(?:src|srcset|href)=\"([^\"]+)\"", prose)
    dead = []
    for target in targets:
        if re.match(r"[a-z]+:|#", target):
            continue
        path = urllib.parse.unquote(target.split("#")[0])
        if not (directory / path).exists():
            dead.append(target)
    return dead


def backend_conditionals(source):
    """Preprocessor conditions on the back end."""
    pattern = r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*(?:FLASH_STEPS_CUDA|FLASH_STEPS_HOOKS|__CUDA|__NVCC__).*$"
    return re.findall(pattern, source, flags=re.MULTILINE)


class Sources(unittest.TestCase):
    def assert_within(self, kind, names):
        counts = {str(name): line_count(name) for name in names}
        too_long = {name: count for name, count in counts.items() if count >= MAX_LINES[kind]}
        self.assertEqual(too_long, {}, f"a {kind} has fewer than {MAX_LINES[kind]} lines")

    def test_no_step_looks_at_the_back_end(self):
        sources = [name for name in tracked(".cu", ".cuh", ".cpp", ".hpp", ".h") if name.parts[0] == "steps"]
        self.assertGreater(len(sources), 0)
        found = {str(name): backend_conditionals(text(name)) for name in sources}
        self.assertEqual({name: lines for name, lines in found.items() if lines}, {})

    def test_no_step_includes_another_step(self):
        for name in tracked(".cu", ".cuh", ".cpp", ".hpp", ".h"):
            if name.parts[0] not in ("steps", "common") or name.parts[1] in ("library", "lies", "predict"):
                continue
            allowed = "/".join(name.parts[:2])
            for included in re.findall(r'^\s*#\s*include\s+"(steps/[^/"]+)', text(name), flags=re.MULTILINE):
                with self.subTest(file=str(name)):
                    self.assertEqual(included, allowed)

    def test_a_kernel_is_read_in_one_sitting(self):
        self.assert_within("kernel", [name for name in tracked(".cu") if name.parts[0] == "steps"])

    def test_a_header_is_read_in_one_sitting(self):
        self.assert_within("header", tracked(".hpp", ".h", ".cuh"))

    def test_the_emulator_stays_small(self):
        sources = [name for name in tracked(".hpp", ".cpp") if name.parts[:2] == ("common", "simt")]
        total = sum(line_count(name) for name in sources if "test" not in name.name)
        self.assertLessEqual(total, MAX_LINES["emulator"])

    def test_no_relative_link_in_a_text_is_dead(self):
        names = tracked(".md")
        self.assertGreater(len(names), 0)
        found = {str(name): dead_links(text(name), (ROOT / name).parent) for name in names}
        self.assertEqual({name: links for name, links in found.items() if links}, {})

    def test_every_step_has_its_lesson_test_and_build_file(self):
        for step in sorted((ROOT / "steps").glob("[0-9]*")):
            for wanted in ("README.md", "test.cpp", "bench.cpp", "CMakeLists.txt"):
                with self.subTest(step=step.name, file=wanted):
                    self.assertTrue((step / wanted).is_file())


class Checkers(unittest.TestCase):
    """The checkers above find what they look for."""

    def test_a_dead_link_is_found_and_a_living_one_is_not(self):
        markdown = "[a](missing.md) [b](CMakeLists.txt#top) [c](https://x.org) `[d](code.md)` <img src=\"no.svg\">"
        self.assertEqual(dead_links(markdown, ROOT), ["missing.md", "no.svg"])

    def test_a_condition_on_the_back_end_is_found(self):
        source = "#include <x>\n#  if defined(FLASH_STEPS_CUDA)\n#ifdef __CUDACC__\n#ifndef NDEBUG\n"
        self.assertEqual(len(backend_conditionals(source)), 2)


class Presets(unittest.TestCase):
    def test_E8_every_test_preset_calls_a_run_without_tests_an_error(self):
        presets = json.loads(text("CMakePresets.json"))["testPresets"]
        by_name = {preset["name"]: preset for preset in presets}
        self.assertGreater(len(presets), 1)
        for preset in presets:
            with self.subTest(preset=preset["name"]):
                base = by_name[preset.get("inherits", preset["name"])]
                self.assertEqual(base["execution"]["noTestsAction"], "error")
                self.assertTrue(base["output"]["outputOnFailure"])


if __name__ == "__main__":
    unittest.main()
