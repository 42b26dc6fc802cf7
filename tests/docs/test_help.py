"""Every program and every script says what it is when it is asked with --help, and does nothing else.

    test_help.py [BUILD]        the build tree whose programs are asked
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from markdown import ROOT

BUILD = None


def scripts():
    """Scripts that somebody starts by hand; the tests' own scripts are started by ctest."""
    listing = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True
    )
    if listing.returncode == 0:
        names = [pathlib.Path(name.decode()) for name in listing.stdout.split(b"\0") if name]
    else:
        names = [path.relative_to(ROOT) for path in ROOT.glob("*/**/*") if path.parts[len(ROOT.parts)] != "build"]
    for name in sorted(set(names)):
        path = ROOT / name
        if not path.is_file() or path.suffix not in (".py", ".sh", "") or path.name.startswith("."):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        is_script = text.startswith("#!") or (path.suffix == ".py" and '__name__ == "__main__"' in text)
        if is_script and "unittest.main" not in text:
            yield path


def programs():
    for path in sorted(BUILD.glob("*/**/*")):
        inside = path.relative_to(BUILD).parts
        if {"CMakeFiles", "venv", "breaks", "exercises"} & set(inside) and inside[:2] != ("tests", "breaks"):
            continue
        if path.is_file() and os.access(path, os.X_OK) and path.suffix == "" and path.read_bytes()[:4] == b"\x7fELF":
            yield path


class Help(unittest.TestCase):
    def ask(self, words):
        with tempfile.TemporaryDirectory(prefix="an empty folder ") as folder:
            variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
            said = subprocess.run(
                [*words, "--help"], capture_output=True, text=True, cwd=folder, stdin=subprocess.DEVNULL, env=variables,
                timeout=60,
            )
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertGreater(len(said.stdout.split()), 5)
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [])
            return said.stdout

    def test_every_script_has_help(self):
        found = list(scripts())
        self.assertGreater(len(found), 10)
        for path in found:
            with self.subTest(script=str(path.relative_to(ROOT))):
                runner = [sys.executable] if path.suffix == ".py" else ["bash"]
                self.assertIn(path.name, self.ask([*runner, path]))

    def test_every_program_has_help(self):
        if BUILD is None:
            self.skipTest("no build tree was given")
        found = list(programs())
        self.assertGreater(len(found), 10)
        for path in found:
            if path.name in ("library_c_program", "contract_skips"):  # tests of a C compiler and of skipping
                continue
            with self.subTest(program=str(path.relative_to(BUILD))):
                self.ask([path])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
