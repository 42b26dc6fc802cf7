"""A broken variant: one patch in steps/NN_name/breaks with a header that says what it shows and what must happen.

The header stands above the diff. A field begins a line with its name and a colon; lines that are indented go on with it.

    Kind: result              a wrong result; `memory rule`, which the emulator's checkers report; or `performance`
    What: one sentence        what the mistake is
    Tempting because: ...     why one makes it
    Hidden by: ...            which inputs do not show it
    Caught by: ...            which test or checker does, and why
    Symptom: ...              what one would see
    Diff: ../ablation/x.patch (optional) the diff is that file's, which serves elsewhere too

and, as often as needed, what the runner holds the variant to:

    Fails: NAME => TEXT       a test case whose name begins with NAME fails, and TEXT is in what it reports
    Passes: NAME              all test cases whose names begin with NAME pass
    Fails on: CASE => TEXT    the step is wrong on one input, given as the case program of tests/breaks takes it
    Passes on: CASE           the step is right on that input

A broken memory rule may be one that no input hides from the emulator; every other mistake passes something.
"""

import dataclasses
import hashlib
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("result", "memory rule", "performance")
TEXTS = ("Kind", "What", "Tempting because", "Hidden by", "Caught by", "Symptom")
OPTIONAL = ("Diff",)
DEMANDS = ("Fails", "Passes", "Fails on", "Passes on")
FIELD = re.compile(r"([A-Z][a-z]+(?: [a-z]+)?):\s*(.*)")


class BadVariant(Exception):
    """A patch that cannot be used, with the reason as one sentence."""


class LeftOut(Exception):
    """A variant that this build cannot judge: the tests that would catch it skip themselves, and say why."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """Something that must fail: a test case by the beginning of its name, or an input; and what it must report."""

    subject: str
    text: str


@dataclasses.dataclass(frozen=True)
class Variant:
    path: pathlib.Path  # of the patch
    fields: dict
    diff: str
    fails: tuple = ()
    passes: tuple = ()
    fails_on: tuple = ()
    passes_on: tuple = ()

    @property
    def name(self):
        return self.path.stem

    @property
    def step_dir(self):
        return self.path.parents[1]

    @property
    def number(self):
        return self.step_dir.name[:2]

    @property
    def changed(self):
        """Names of the step's files that the diff changes."""
        return re.findall(r"^\+\+\+ b/(\S+)", self.diff, flags=re.MULTILINE)

    @property
    def digest(self):
        """Changes with the diff and with what is demanded of the variant."""
        demands = [self.diff, self.fails, self.passes, self.fails_on, self.passes_on]
        return hashlib.sha256(repr(demands).encode()).hexdigest()[:12]


def split_failure(path, value):
    subject, arrow, text = (part.strip() for part in value.partition(" => "))
    if not arrow or not subject or not text:
        raise BadVariant(f"{path.name}: '{value}' must be SUBJECT => TEXT")
    return Failure(subject, text)


def header_fields(path, header):
    fields = []
    for line in header.splitlines():
        if line.startswith((" ", "\t")) and line.strip() and fields:
            fields[-1][1] += " " + line.strip()
        elif line.strip():
            match = FIELD.fullmatch(line)
            if not match:
                raise BadVariant(f"{path.name}: '{line}' is no field of the header")
            fields.append([match[1], match[2].strip()])
    return fields


def read_variant(path):
    path = pathlib.Path(path)
    header, begin, diff = path.read_text(encoding="utf-8").partition("\n--- a/")
    texts, demands = {}, {name: [] for name in DEMANDS}
    for name, value in header_fields(path, header):
        if not value:
            raise BadVariant(f"{path.name}: '{name}:' says nothing")
        if name in demands:
            demands[name].append(split_failure(path, value) if name.startswith("Fails") else value)
        elif name in TEXTS + OPTIONAL and name not in texts:
            texts[name] = value
        else:
            raise BadVariant(f"{path.name}: '{name}:' is unknown, or there twice")
    missing = [name for name in TEXTS if name not in texts]
    if missing:
        raise BadVariant(f"{path.name}: the header lacks '{missing[0]}:'")
    if texts["Kind"] not in KINDS:
        raise BadVariant(f"{path.name}: Kind is '{texts['Kind']}'; it must be one of {', '.join(KINDS)}")
    if not demands["Fails"] and not demands["Fails on"]:
        raise BadVariant(f"{path.name}: nothing says what must fail")
    if texts["Kind"] != "memory rule" and not demands["Passes"] and not demands["Passes on"]:
        raise BadVariant(f"{path.name}: nothing says which tests or inputs pass all the same")
    if ("Diff" in texts) == bool(begin):
        raise BadVariant(f"{path.name}: it needs a diff of its own or a 'Diff:' field, and not both")
    diff = "--- a/" + diff
    if "Diff" in texts:
        elsewhere = path.parent / texts["Diff"]
        if not elsewhere.is_file():
            raise BadVariant(f"{path.name}: '{texts['Diff']}' does not exist")
        diff = "--- a/" + elsewhere.read_text(encoding="utf-8").partition("--- a/")[2]
    lists = {key.lower().replace(" ", "_"): tuple(value) for key, value in demands.items()}
    return Variant(path, texts, diff, **lists)


def all_variants(root=ROOT):
    """Every variant of every step, in order."""
    return [read_variant(path) for path in sorted(root.glob("steps/[0-9]*/breaks/*.patch"))]
