#!/usr/bin/env python3
"""docs/bug-catalog.md and the 'Break it' lists of the steps' READMEs, out of the variants' headers and the results of
the last full run.

    catalogue.py             writes them
    catalogue.py --check     says which are out of date, and exits 1 if any is"""

import csv
import pathlib
import re
import sys

from variants import ROOT, BadVariant, all_variants

RESULTS = pathlib.Path(__file__).resolve().parent / "results.csv"
CATALOGUE = ROOT / "docs" / "bug-catalog.md"
COLUMNS = ("step", "variant", "digest", "caught_by", "evidence")
BLOCK = re.compile(r"(<!-- breaks -->\n)(.*?)(<!-- /breaks -->)", re.DOTALL)
KIND_HEADINGS = {"result": "wrong result", "memory rule": "broken memory rule", "performance": "performance"}


def write_results(results, variants):
    """Puts the results of a run in the place of what was known of its variants; of the others that stays."""
    known = read_results()
    new = {(v.number, v.name): [(v.number, v.name, v.digest, *what) for what in caught] for v, caught, _ in results}
    with open(RESULTS, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for v in variants:
            name = v.number, v.name
            writer.writerows(new[name] if name in new else
                             [row.values() for row in known if (row["step"], row["variant"]) == name])


def read_results():
    if not RESULTS.is_file():
        return []
    with open(RESULTS, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def results_of(variant, rows):
    """What caught the variant in the last full run; an error when it has changed since, or was not run."""
    mine = [row for row in rows if (row["step"], row["variant"]) == (variant.number, variant.name)]
    if not mine or any(row["digest"] != variant.digest for row in mine):
        raise BadVariant(f"tests/breaks/results.csv knows nothing of {variant.number} {variant.name} as it is now; "
                         "run tests/breaks/run.py --update")
    return mine


def report_stale(results):
    """Prints what the committed results lack or have too much of; the exit status."""
    now = {(v.number, v.name, v.digest, subject) for v, caught, _ in results for subject, _ in caught}
    left_out = {(v.number, v.name) for v, caught, _ in results if not caught}
    then = {tuple(row[column] for column in COLUMNS[:4]) for row in read_results()
            if (row["step"], row["variant"]) not in left_out}
    for entry in sorted(now ^ then):
        print("tests/breaks/results.csv differs from this run:", *entry)
    if now != then:
        print("bring it up to date with: python3 tests/breaks/run.py --update")
    return int(now != then)


SPELLED = {"dk": "dK", "dq": "dQ", "ds": "dS", "k": "K", "l": "L", "lse": "L", "nan": "NaN", "p": "P", "q": "Q", "v": "V"}


def title(variant):
    words = " ".join(SPELLED.get(word, word) for word in variant.name.split("_"))
    return sentence(words)


def subject_text(subject):
    """A test case by its name, or an input of a case program in words."""
    words = subject.split()
    if len(words) < 10 or words[0] not in ("fp32", "fp16", "bf16"):
        return subject.replace("<", "&lt;")
    sizes = " ".join(f"{name}={size}" for name, size in zip(("B", "Hq", "Hkv", "Nq", "Nk", "D"), words[1:7]))
    mask = {"none": "no mask", "top-left": "causal top-left", "bottom-right": "causal bottom-right"}
    return f"{words[0]}, {sizes}, {mask.get(words[7], 'diagonal ' + words[7])}, {words[8]}, {words[9]}"


def sentence(text):
    """With a capital at its start, where a name such as dQ does not stand there."""
    return text if text[1:2].isupper() else text[0].upper() + text[1:]


def anchor(variant):
    return f"{variant.number}-{variant.name.replace('_', '-')}"


def catalogue_entry(variant, rows):
    fields = variant.fields
    lines = [f'### <a id="{anchor(variant)}"></a>{title(variant)}', "", fields["What"], ""]
    lines.append(f"- **Symptom.** {sentence(fields['Symptom'])}")
    lines.append(f"- **Why it is tempting.** {sentence(fields['Tempting because'])}")
    lines.append(f"- **Why random tests miss it.** {sentence(fields['Hidden by'])}")
    lines += [f"  - passes: {subject_text(subject)}" for subject in variant.passes + variant.passes_on]
    lines.append(f"- **What catches it.** {sentence(fields['Caught by'])}")
    lines += [f"  - fails: {subject_text(row['caught_by'])}: `{row['evidence']}`" for row in rows]
    path = variant.path.relative_to(ROOT).as_posix()
    lines.append(f"- [{path}](../{path})")
    return "\n".join(lines) + "\n"


def catalogue_text(variants, rows):
    parts = [
        "# The bug catalogue\n",
        "Well-known ways to get each step wrong, every one as a patch of a few lines that is applied, built and run by the\n"
        "tests: the tests named under *What catches it* must fail with the text shown, and the inputs said to hide the mistake\n"
        "must pass. All of them compile without a warning.\n",
        "```sh\n"
        "python3 tests/breaks/run.py --list\n"
        "cmake --preset breaks\n"
        "python3 tests/breaks/run.py --show forgotten_rescale --step 05\n"
        "```\n\n"
        "The last one shows a variant from its diff to its failing test. This page is generated from the headers of the\n"
        "patches and the results of the last full run (`cmake --workflow --preset breaks`): tests/breaks/catalogue.py.\n",
    ]
    lines = ["| step | bug | kind |", "|---|---|---|"]
    for v in variants:
        lines.append(f"| {v.number} | [{title(v)}](#{anchor(v)}) | {KIND_HEADINGS[v.fields['Kind']]} |")
    parts.append("\n".join(lines) + "\n")
    step = None
    for variant in variants:
        if variant.number != step:
            step = variant.number
            parts.append(f"## [{variant.step_dir.name}](../steps/{variant.step_dir.name}/README.md)\n")
        parts.append(catalogue_entry(variant, results_of(variant, rows)))
    return "\n".join(parts)


def readme_block(variants):
    lines = [
        f"- [{title(v)}](../../docs/bug-catalog.md#{anchor(v)}). {v.fields['What']}" for v in variants
    ]
    return "\n".join(lines) + "\n"


def documents(variants):
    """{path: what it must hold}."""
    wanted = {CATALOGUE: catalogue_text(variants, read_results())}
    for step in sorted({v.step_dir for v in variants}):
        readme = step / "README.md"
        text = readme.read_text(encoding="utf-8")
        if not BLOCK.search(text):
            raise BadVariant(f"{readme.relative_to(ROOT)} has no block between <!-- breaks --> and <!-- /breaks -->")
        block = readme_block([v for v in variants if v.step_dir == step])
        wanted[readme] = BLOCK.sub(lambda match: match[1] + block + match[3], text)
    return wanted


def write_documents(variants):
    for path, text in documents(variants).items():
        path.write_text(text, encoding="utf-8")


def main(arguments):
    if {"-h", "--help"} & set(arguments):
        print(__doc__.strip())
        return 0
    if arguments not in ([], ["--check"]):
        sys.exit(f"catalogue.py does not know {' '.join(arguments)}; --help says what it takes")
    variants = all_variants()
    if not arguments:
        write_documents(variants)
        return 0
    stale = [path for path, text in documents(variants).items()
             if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is out of date; python3 tests/breaks/catalogue.py writes it")
    return int(bool(stale))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadVariant as error:
        sys.exit(str(error))
