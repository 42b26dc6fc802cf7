"""Builds and runs a variant beside an existing build tree: a copy of the step's sources is patched, the sources that the
change reaches are compiled with the tree's own commands, and linked with the tree's objects and libraries. Nothing in
the tree or in the sources changes."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import threading
import xml.etree.ElementTree

from variants import BadVariant

SOURCES = (".cpp", ".cu")


class Tree:
    """A build tree that Ninja builds."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory).resolve()
        if not (self.directory / "build.ninja").is_file():
            raise BadVariant(f"{directory} is no build tree of Ninja's; cmake --workflow --preset test makes one")
        self.lock = threading.Lock()
        self.compiled = {}  # object -> its source and command
        self.linked = {}  # program -> its command
        for entry in json.loads(self.ninja("-t", "compdb").stdout):
            if entry["output"].endswith(".o"):
                self.compiled[entry["output"]] = (entry["file"], entry["command"])
            elif entry["command"].startswith(": &&"):
                self.linked[entry["output"]] = entry["command"]

    def ninja(self, *arguments):
        with self.lock:
            return subprocess.run(["ninja", *arguments], cwd=self.directory, capture_output=True, text=True)

    def emulates(self):
        """Whether GPU steps run on the emulator here, with every access seen."""
        return any("-DFLASH_STEPS_HOOKS" in command for _, command in self.compiled.values())

    def build(self, *targets):
        made = self.ninja(*targets)
        if made.returncode:
            raise BadVariant(f"the clean sources do not build:\n{made.stdout[-3000:]}")

    def link_command(self, target):
        for output, command in self.linked.items():
            if pathlib.PurePath(output).name == target:
                return command.removeprefix(": &&").removesuffix("&& :").strip()
        raise BadVariant(f"the build tree has no program {target}; is it one that runs GPU steps on the emulator?")

    def libraries_of(self, target):
        """Names of the targets whose libraries a program is linked with."""
        words = map(pathlib.PurePath, shlex.split(self.link_command(target)))
        return {word.stem.removeprefix("lib") for word in words if word.suffix == ".a"}

    def dependencies(self, output):
        """Every file that an object was last built from."""
        lines = self.ninja("-t", "deps", output).stdout.splitlines()[1:]
        return {(self.directory / line.strip()).resolve() for line in lines if line.strip()}

    def objects_of(self, libraries, step_dir, changed):
        """(library, source, command) of what a change of these files of the step makes anew."""
        touched = {(step_dir / name).resolve() for name in changed}
        found = []
        for output, (file, command) in self.compiled.items():
            source, library = pathlib.Path(file), pathlib.PurePath(output).parent.stem
            if library in libraries and source.parent.resolve() == step_dir.resolve():
                if touched & self.dependencies(output):
                    found.append((library, source, command))
        if not found:
            raise BadVariant(f"nothing in {' and '.join(sorted(libraries))} is built from {', '.join(changed)}")
        return found


def apply(variant, directory):
    """A copy of the step's sources in `directory`/steps/NN_name, with the patch applied. Returns that folder."""
    copy = pathlib.Path(directory) / "steps" / variant.step_dir.name
    shutil.rmtree(directory, ignore_errors=True)
    copy.mkdir(parents=True)
    for source in variant.step_dir.iterdir():
        if source.suffix in (*SOURCES, ".hpp") and source.is_file():
            shutil.copy2(source, copy)
    for name in variant.changed:
        if not (copy / name).is_file():
            raise BadVariant(f"the patch changes {name}, which the step does not have")
    # No fuzz: a patch whose surroundings have changed must be looked at again.
    patched = subprocess.run(
        ["patch", "--silent", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-d", copy],
        input=variant.diff, capture_output=True, text=True,
    )
    if patched.returncode:
        raise BadVariant(f"the patch no longer applies: {(patched.stdout + patched.stderr).strip()}")
    return copy


def compile_command(command, source, output, include):
    """A command of the build tree, for another source and object, with a folder of headers that comes first."""
    words, kept = shlex.split(command), []
    i = 0
    while i < len(words):
        if words[i] in ("-MF", "-MT", "-o"):
            i += 2
            continue
        if words[i] not in ("-MD", "-c") and not (words[i - 1] == "-c"):
            kept.append(words[i])
        i += 1
    first_flag = next(i for i, word in enumerate(kept) if word.startswith("-"))
    return [*kept[:first_flag], f"-I{include}", *kept[first_flag:], "-o", str(output), "-c", str(source)]


def link_with(command, objects, output):
    """The tree's link command with other objects before its libraries, so that those of the step are not taken."""
    words = shlex.split(command)
    at = words.index("-o")
    words[at + 1] = str(output)
    first_library = next(i for i, word in enumerate(words) if word.endswith(".a"))
    return [*words[:first_library], *map(str, objects), *words[first_library:]]


def without_members(words, tree, replaced, place):
    """The link command with copies of libraries, in `place`, that lack what is replaced: a new object that forgets a
    function must not be given the old one's. replaced: (library, source) pairs."""
    words = list(words)
    for i, word in enumerate(words):
        name = pathlib.PurePath(word).name
        members = [f"{source.name}.o" for library, source in replaced if name == f"lib{library}.a"]
        if members:
            words[i] = shutil.copy(tree.directory / word, place / name)
            subprocess.run(["ar", "d", words[i], *members], check=True)
    return [str(word) for word in words]


def make(words, tree, what):
    made = subprocess.run(words, cwd=tree.directory, capture_output=True, text=True)
    if made.returncode:
        raise BadVariant(f"the variant does not {what}:\n{(made.stderr + made.stdout).strip()[:3000]}")


class Program:
    """The step's test and case programs, linked with the variant."""

    def __init__(self, variant, tree):
        self.variant, self.tree = variant, tree
        self.directory = tree.directory / "breaks" / variant.number / variant.name
        self.sources = apply(variant, self.directory)
        self.skipped = ""  # why some test of the last run left something out

    def compiled(self, target):
        """The variant's objects in a program, whichever of its libraries they belong to, and what they replace."""
        objects, replaced = [], []
        libraries = self.tree.libraries_of(target)
        for library, source, command in self.tree.objects_of(libraries, self.variant.step_dir, self.variant.changed):
            made = self.directory / f"{library}_{source.stem}.o"
            if not made.exists():
                make(compile_command(command, self.sources / source.name, made, self.directory), self.tree, "compile")
            objects.append(made)
            replaced.append((library, source))
        return objects, replaced

    def linked(self, kind):
        target = f"step{self.variant.number}_{kind}"
        output = self.directory / target
        if not output.exists():
            objects, replaced = self.compiled(target)
            words = link_with(self.tree.link_command(target), objects, output)
            make(without_members(words, self.tree, replaced, self.directory), self.tree, "link")
        return output

    def run_tests(self, names, timeout):
        """{test case: its report}, the report empty for one that passed; of all whose names begin with one given."""
        if not names:
            return {}
        report = self.directory / "report.xml"
        report.unlink(missing_ok=True)
        try:
            ran = subprocess.run(
                [self.linked("test"), f"-tc={filters(names)}", "-r=xml", f"-o={report}"],
                cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=timeout,
                # Threads that spin while they wait would steal time from the variants beside this one.
                env=os.environ | {"OMP_WAIT_POLICY": "passive"},
            )
        except subprocess.TimeoutExpired:
            raise BadVariant(f"the tests did not end within {timeout} s") from None
        self.skipped = next((line for line in ran.stdout.splitlines() if line.startswith("SKIP:")), "")
        return read_report(report)

    def run_case(self, case, timeout):
        """What is wrong on one input; empty when nothing is."""
        try:
            ran = subprocess.run(
                [self.linked("case"), *case.split()],
                cwd=self.directory, capture_output=True, text=True, timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise BadVariant(f"the input '{case}' did not end within {timeout} s") from None
        if ran.returncode not in (0, 1):
            raise BadVariant(f"the input '{case}' is refused: {(ran.stderr + ran.stdout).strip()}")
        return ran.stdout.strip() if ran.returncode else ""


def filters(names):
    """doctest's filter for names that begin like these; its separators and wildcards stand for any one letter."""
    return ",".join(name.replace(",", "?").replace("*", "?").replace('"', "?") + "*" for name in names)


def read_report(path):
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        raise BadVariant("the test program died") from None
    reports = {}
    for case in root.iter("TestCase"):
        result = case.find("OverallResultsAsserts")
        if case.get("skipped") == "true" or result is None:
            continue
        reports[case.get("name")] = "" if result.get("test_case_success") == "true" else text_of(case)
    return reports


def text_of(case):
    """What a failed test case reports, one line an assertion or captured value."""
    lines = []
    for element in case.iter():
        if element.tag in ("Original", "Expanded", "Text", "Info", "Exception") and element.text:
            lines += [line.strip() for line in element.text.splitlines() if line.strip()]
    return "\n".join(lines)
