#!/usr/bin/env python3
"""Runs the broken variants of steps/*/breaks: each mistake must be caught by the tests that its header names, for the
reason it names, and the inputs said to hide it must pass. variants.py says what a header holds.

    run.py                       every variant; exits 1 if one does not do what its header says
    run.py --step 05             of one step; --variant NAME: of one name (both may be repeated)
    run.py --list                names and mistakes
    run.py --show NAME           one variant for a reader: its diff, its failing tests, the explanation
    run.py --update              also writes the results of those that ran to tests/breaks/results.csv, and what is
                                 generated from it

Variants are built beside an existing build tree of the emulator (--build; else build/breaks, build/default or
build/emulator, as the presets make them)."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import sys
import textwrap
import time

import catalogue
from variants import ROOT, BadVariant, LeftOut, all_variants
from workbench import Program, Tree

TIMEOUT = 300  # seconds for a variant's tests; the slowest takes 20 on an idle core


def matching(reports, name):
    return {case: report for case, report in reports.items() if case.startswith(name)}


def evidence(report, text):
    """What the report says from the text on, as much as a catalogue shows; addresses change from run to run."""
    line = next(line for line in report.splitlines() if text in line)
    said = re.sub(r"0x[0-9a-f]{5,}", "0x...", line[line.index(text):].removesuffix(" ==").rstrip('"'))
    return said if len(said) <= 110 else said[: max(107, len(text))] + "..."


def judge_variant(variant, program):
    """What the variant's programs do against what its header says: [(what failed, evidence)]; or BadVariant."""
    reports = program.run_tests([f.subject for f in variant.fails] + list(variant.passes), TIMEOUT)
    caught = []
    for failure in variant.fails:
        found = matching(reports, failure.subject)
        if not found:
            raise BadVariant(f"no test case is called '{failure.subject}...'")
        failed = {case: report for case, report in found.items() if report}
        if not failed and program.skipped:
            raise LeftOut(program.skipped)
        if not failed:
            raise BadVariant(f"'{failure.subject}' passes: the mistake is not caught")
        told = [report for report in failed.values() if failure.text in report]
        if not told:
            raise BadVariant(f"'{failure.subject}' fails, but says nothing of '{failure.text}':\n"
                             + next(iter(failed.values()))[:2000])
        caught.append((failure.subject, evidence(told[0], failure.text)))
    for name in variant.passes:
        found = matching(reports, name)
        if not found:
            raise BadVariant(f"no test case is called '{name}...'")
        failed = [report for report in found.values() if report]
        if failed:
            raise BadVariant(f"'{name}' fails, though it is said to hide the mistake:\n{failed[0][:2000]}")
    for failure in variant.fails_on:
        report = program.run_case(failure.subject, TIMEOUT)
        if failure.text not in report:
            raise BadVariant(f"on the input '{failure.subject}' it must say '{failure.text}', but says '{report}'")
        caught.append((failure.subject, evidence(report, failure.text)))
    for case in variant.passes_on:
        report = program.run_case(case, TIMEOUT)
        if report:
            raise BadVariant(f"the input '{case}' is said to hide the mistake, but: {report}")
    return caught


def run_variant(variant, tree):
    """(variant, what caught it, why it is not as its header says, seconds); nothing caught a variant left out."""
    began = time.monotonic()
    try:
        caught, wrong = judge_variant(variant, Program(variant, tree)), ""
    except BadVariant as error:
        caught, wrong = [], str(error)
    except LeftOut as reason:
        caught, wrong = [], ""
        print(reason, flush=True)
    return variant, caught, wrong, time.monotonic() - began


def find_tree(wanted):
    if wanted:
        return Tree(wanted)
    for name in ("breaks", "default", "emulator"):
        if (ROOT / "build" / name / "build.ninja").is_file():
            return Tree(ROOT / "build" / name)
    raise BadVariant("there is no build tree; make one with: cmake --workflow --preset test")


def targets_of(variants):
    wanted = set()
    for variant in variants:
        wanted.add(f"step{variant.number}_test")
        if variant.passes_on or variant.fails_on:
            wanted.add(f"step{variant.number}_case")
    return sorted(wanted)


def run_all(variants, tree, jobs):
    results = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for variant, caught, wrong, seconds in pool.map(lambda v: run_variant(v, tree), variants):
            label = f"{variant.number} {variant.name}"
            verdict = "FAILED" if wrong else "caught" if caught else "SKIP"
            print(f"{verdict:<7} {label:<44} {seconds:5.1f} s", flush=True)
            if wrong:
                print(textwrap.indent(wrong, "        "), flush=True)
            results.append((variant, caught, wrong))
    return results


def show(variant, tree):
    """One variant from its diff to its explanation."""
    fields = variant.fields
    print(f"{variant.step_dir.name}: {variant.name.replace('_', ' ')}\n")
    print(textwrap.fill(fields["What"], 100), "\n")
    print(variant.diff)
    program = Program(variant, tree)
    print(f"Built in {program.directory}. What its tests say:\n")
    reports = program.run_tests([f.subject for f in variant.fails], TIMEOUT)
    for failure in variant.fails:  # the first of a test case's instances is enough
        name, report = next((item for item in sorted(matching(reports, failure.subject).items()) if item[1]),
                            (failure.subject, ""))
        print(f"{'FAILED' if report else 'passed'}: {name}")
        print(textwrap.indent("\n".join(report.splitlines()[:6]), "    "))
    for failure in variant.fails_on:
        print(f"input {failure.subject}:\n    {program.run_case(failure.subject, TIMEOUT) or 'right'}")
    for name, report in sorted(program.run_tests(variant.passes, TIMEOUT).items()):
        print(f"{'FAILED' if report else 'passed'}: {name}")
    for case in variant.passes_on:
        print(f"input {case}:\n    {program.run_case(case, TIMEOUT) or 'right'}")
    for name in ("Symptom", "Tempting because", "Hidden by", "Caught by"):
        print("\n" + textwrap.fill(f"{name}: {fields[name]}", 100, subsequent_indent="  "))


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="append", metavar="NN")
    parser.add_argument("--variant", action="append", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--as-built", action="store_true", help="do not bring the build tree up to date first")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--show", metavar="NAME")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; it must be at least 1")
    options.step = [step.split("_")[0].zfill(2) for step in options.step or []]
    return options


def chosen(variants, options):
    names = options.variant or ([options.show] if options.show else None)
    found = [v for v in variants
             if (not options.step or v.number in options.step) and (not names or v.name in names)]
    known = {v.name for v in variants}
    for name in names or []:
        if name not in known:
            raise BadVariant(f"no variant is called '{name}'; --list lists them")
    for step in options.step:
        if step not in (steps := {v.number for v in variants}):
            raise BadVariant(f"step {step} has no broken variants; those of {min(steps)} to {max(steps)} have some")
    if not found:
        raise BadVariant(f"no variant of step {' or '.join(options.step)} is called '{' or '.join(names)}'")
    return found


def main(arguments):
    options = parse(arguments)
    everything = all_variants()
    variants = chosen(everything, options)
    if options.list:
        for variant in variants:
            print(f"{variant.number} {variant.name:<36} {variant.fields['What']}")
        return 0
    tree = find_tree(options.build)
    if any(v.number >= "04" for v in variants) and not tree.emulates():
        raise BadVariant(f"{tree.directory} does not run GPU steps on the emulator; configure one with "
                         "-DFLASH_STEPS_BACKEND=emulator, or: cmake --workflow --preset breaks")
    if not options.as_built:
        tree.build(*targets_of(variants))
    if options.show:
        for variant in variants:
            show(variant, tree)
        return 0
    results = run_all(variants, tree, options.jobs)
    wrong = [variant for variant, _, why in results if why]
    left_out = [variant for variant, caught, why in results if not caught and not why]
    print(f"{len(results) - len(wrong) - len(left_out)} of {len(results)} variants are caught as their headers say"
          + (f", {len(left_out)} cannot be judged in this build" if left_out else ""))
    if wrong:
        return 1
    if options.update:
        if left_out:
            raise BadVariant("--update needs a build that judges every variant")
        catalogue.write_results(results, everything)
        catalogue.write_documents(everything)
        return 0
    return 0 if options.step or options.variant else catalogue.report_stale(results)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (BadVariant, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        os._exit(130)  # not waiting for the variants that are still to run
