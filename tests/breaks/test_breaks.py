"""The broken variants' headers and patches, what is generated from them, and the runner's own parts."""

import contextlib
import dataclasses
import io
import pathlib
import shutil
import tempfile
import unittest
import unittest.mock

import catalogue
import run
import workbench
from variants import ROOT, BadVariant, Failure, LeftOut, all_variants, read_variant

HEADER = """Kind: result
What: one thing
    on two lines
Tempting because: it is
Hidden by: much
Caught by: one test
Symptom: none
Fails: a test => with: a text
Passes on: fp32 1 1 1 2 2 8 none bhnd normal
"""
DIFF = """
--- a/thing.cpp
+++ b/thing.cpp
@@ -1,3 +1,3 @@
 int f() {
-    return 1;
+    return 2;
 }
"""
THING = "int f() {\n    return 1;\n}\n"


class Scratch(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.step = self.folder / "steps" / "05_thing"
        (self.step / "breaks").mkdir(parents=True)
        (self.step / "thing.cpp").write_text(THING)

    def variant(self, header=HEADER, diff=DIFF):
        path = self.step / "breaks" / "a_mistake.patch"
        path.write_text(header + diff)
        return read_variant(path)

    def refused(self, sentence, header=HEADER, diff=DIFF):
        with self.assertRaisesRegex(BadVariant, sentence):
            self.variant(header, diff)


class Committed(unittest.TestCase):
    """What the repository holds."""

    variants = all_variants()

    def test_every_step_that_is_built_has_variants(self):
        numbers = {variant.number for variant in self.variants}
        for number in range(1, 10):
            self.assertIn(f"{number:02}", numbers)

    def test_every_patch_applies_to_the_clean_sources(self):
        with tempfile.TemporaryDirectory() as folder:
            for variant in self.variants:
                with self.subTest(variant=variant.name, step=variant.number):
                    copy = workbench.apply(variant, pathlib.Path(folder) / variant.number / variant.name)
                    for name in variant.changed:
                        self.assertNotEqual((copy / name).read_text(), (variant.step_dir / name).read_text())

    def test_every_demanded_test_case_exists(self):
        for variant in self.variants:
            sources = "".join(path.read_text() for path in sorted(variant.step_dir.glob("*test.cpp")))
            sources = sources.replace('"\n    "', "")
            sources = " ".join(sources.split()).replace('" "', "").replace('\\"', '"')
            for name in [failure.subject for failure in variant.fails] + list(variant.passes):
                with self.subTest(variant=variant.name, step=variant.number):
                    self.assertIn('"' + name.partition("<")[0], sources)

    def test_catalogue_and_lists_are_up_to_date(self):
        for path, text in catalogue.documents(self.variants).items():
            with self.subTest(path=str(path.relative_to(ROOT))):
                self.assertEqual(path.read_text(encoding="utf-8"), text,
                                 "python3 tests/breaks/catalogue.py writes it")

    def test_results_are_of_existing_variants(self):
        known = {(variant.number, variant.name) for variant in self.variants}
        for row in catalogue.read_results():
            self.assertIn((row["step"], row["variant"]), known)


class Headers(Scratch):
    def test_a_header_is_read(self):
        variant = self.variant()
        self.assertEqual(variant.fields["What"], "one thing on two lines")
        self.assertEqual(variant.fails, (Failure("a test", "with: a text"),))
        self.assertEqual(variant.passes_on, ("fp32 1 1 1 2 2 8 none bhnd normal",))
        self.assertEqual(variant.changed, ["thing.cpp"])
        self.assertEqual((variant.number, variant.name), ("05", "a_mistake"))

    def test_a_header_that_lacks_something_is_refused_by_name(self):
        for field in ("What", "Tempting because", "Hidden by", "Caught by", "Symptom", "Kind"):
            header = HEADER.replace("    on two lines\n", "")
            lines = [line for line in header.splitlines() if not line.startswith(field + ":")]
            self.refused(f"lacks '{field}:'", "\n".join(lines) + "\n")
        self.refused("what must fail", HEADER.replace("Fails: a test => with: a text\n", ""))
        self.refused("pass all the same", HEADER.replace("Passes on: fp32 1 1 1 2 2 8 none bhnd normal\n", ""))
        self.refused("must be SUBJECT => TEXT", HEADER.replace(" => with: a text", ""))
        self.refused("'Note:' is unknown", HEADER + "Note: this\n")
        self.refused("Kind is 'wrong'", HEADER.replace("Kind: result", "Kind: wrong"))
        self.refused("a diff of its own", diff="")
        self.refused("is no field", "just text\n" + HEADER)

    def test_a_diff_may_stand_elsewhere(self):
        (self.step / "other.patch").write_text("A sentence.\n" + DIFF)
        elsewhere = self.variant(HEADER + "Diff: ../other.patch\n", "")
        self.assertEqual(elsewhere.diff, self.variant().diff)
        self.refused("does not exist", HEADER + "Diff: ../missing.patch\n", "")

    def test_the_digest_changes_with_the_diff_and_the_demands_only(self):
        first = self.variant().digest
        self.assertEqual(self.variant(HEADER.replace("one thing", "another")).digest, first)
        self.assertNotEqual(self.variant(HEADER.replace("a text", "no text")).digest, first)
        self.assertNotEqual(self.variant(diff=DIFF.replace("return 2", "return 3")).digest, first)


class Patching(Scratch):
    def test_a_patch_is_applied_to_a_copy(self):
        copy = workbench.apply(self.variant(), self.folder / "scratch")
        self.assertEqual((copy / "thing.cpp").read_text(), THING.replace("1", "2"))
        self.assertEqual((self.step / "thing.cpp").read_text(), THING)

    def test_a_patch_that_no_longer_applies_is_refused(self):
        variant = self.variant()
        (self.step / "thing.cpp").write_text(THING.replace("return 1", "return 7"))
        with self.assertRaisesRegex(BadVariant, "no longer applies"):
            workbench.apply(variant, self.folder / "scratch")

    def test_a_patch_whose_surroundings_have_changed_is_refused(self):
        variant = self.variant()
        (self.step / "thing.cpp").write_text(THING.replace("int f()", "int g()"))
        with self.assertRaisesRegex(BadVariant, "no longer applies"):
            workbench.apply(variant, self.folder / "scratch")


class Commands(unittest.TestCase):
    def test_a_compile_command_is_turned_to_the_copy(self):
        command = "ccache g++ -Iroot -O2 -x c++ -MD -MT a.o -MF a.o.d -o a.o -c /src/a.cu"
        self.assertEqual(
            workbench.compile_command(command, "/copy/a.cu", "/copy/a.o", "/copy"),
            "ccache g++ -I/copy -Iroot -O2 -x c++ -o /copy/a.o -c /copy/a.cu".split(),
        )

    def test_the_variants_objects_come_before_every_library(self):
        self.assertEqual(
            workbench.link_with("g++ -O2 test.o -o test libstep.a -ldl", ["new.o"], "out"),
            "g++ -O2 test.o -o out new.o libstep.a -ldl".split(),
        )

    def test_doctest_separators_in_a_name_are_any_letter(self):
        self.assertEqual(workbench.filters(['a, "b" *', "c"]), "a? ?b? ?*,c*")


class FakeTree(workbench.Tree):
    """A step of two sources, of which two libraries are built, and a program that is linked with one of them."""

    def __init__(self, step):
        self.directory, self.step = step, step
        self.linked = {"bin/step05_test": ": && g++ test.o -o bin/step05_test libstep05.a common/libchecks.a && :"}
        self.compiled = {f"{library}.dir/{source}.o": (str(step / source), f"compile {source}")
                         for library in ("step05", "step05_other") for source in ("a.cu", "b.cu")}

    def dependencies(self, output):
        """Both sources include both.hpp, b.cu alone b.hpp."""
        source = pathlib.PurePath(output).stem
        headers = ["both.hpp", "b.hpp"] if source == "b.cu" else ["both.hpp"]
        return {(self.step / name).resolve() for name in [source, *headers]}


class Rebuilding(Scratch):
    def made(self, *changed):
        tree = FakeTree(self.step)
        found = tree.objects_of(tree.libraries_of("step05_test"), self.step, changed)
        return [(library, source.name, command) for library, source, command in found]

    def test_a_source_is_compiled_for_the_libraries_of_the_program_only(self):
        self.assertEqual(self.made("a.cu"), [("step05", "a.cu", "compile a.cu")])

    def test_a_header_makes_the_sources_that_include_it(self):
        self.assertEqual(self.made("b.hpp"), [("step05", "b.cu", "compile b.cu")])
        self.assertEqual([source for _, source, _ in self.made("both.hpp")], ["a.cu", "b.cu"])

    def test_a_change_that_no_object_depends_on_is_refused(self):
        with self.assertRaisesRegex(BadVariant, "is built from alone.hpp"):
            self.made("alone.hpp")


class FakeProgram:
    """Answers as a variant's programs would."""

    def __init__(self, reports, inputs=None):
        self.reports, self.inputs, self.skipped = reports, inputs or {}, ""

    def run_tests(self, names, timeout):
        return {case: report for case, report in self.reports.items() if any(map(case.startswith, names))}

    def run_case(self, case, timeout):
        return self.inputs.get(case, "")


class Judging(Scratch):
    INPUT = "fp32 1 1 1 2 2 8 none bhnd normal"

    def judge(self, reports, inputs=None, header=HEADER):
        return run.judge_variant(self.variant(header), FakeProgram(reports, inputs))

    def test_a_caught_variant_gives_its_evidence(self):
        caught = self.judge({"a test<float>": "", "a test<bf16>": "x\nhere with: a text at 0x7f1234567890"})
        self.assertEqual(caught, [("a test", "with: a text at 0x...")])

    def test_a_variant_that_passes_is_a_failure(self):
        with self.assertRaisesRegex(BadVariant, "the mistake is not caught"):
            self.judge({"a test": ""})

    def test_a_test_that_skips_itself_leaves_the_variant_out(self):
        program = FakeProgram({"a test": ""})
        program.skipped = "SKIP: nothing is counted here"
        with self.assertRaisesRegex(LeftOut, "nothing is counted here"):
            run.judge_variant(self.variant(), program)

    def test_a_failure_for_another_reason_is_a_failure(self):
        with self.assertRaisesRegex(BadVariant, "says nothing of 'with: a text'"):
            self.judge({"a test": "something else"})

    def test_a_test_that_does_not_exist_is_a_failure(self):
        with self.assertRaisesRegex(BadVariant, "no test case is called 'a test"):
            self.judge({})
        with self.assertRaisesRegex(BadVariant, "no test case is called 'gone"):
            self.judge({"a test": "with: a text"}, header=HEADER + "Passes: gone\n")

    def test_a_hiding_test_or_input_that_fails_is_a_failure(self):
        with self.assertRaisesRegex(BadVariant, "said to hide the mistake"):
            self.judge({"a test": "with: a text", "calm": "but no"}, header=HEADER + "Passes: calm\n")
        with self.assertRaisesRegex(BadVariant, "said to hide the mistake, but: wrong"):
            self.judge({"a test": "with: a text"}, {self.INPUT: "wrong"})

    def test_an_input_that_is_right_though_it_must_fail_is_a_failure(self):
        with self.assertRaisesRegex(BadVariant, "must say 'NaN', but says ''"):
            self.judge({"a test": "with: a text"}, header=HEADER + "Fails on: fp32 input => NaN\n")


class Reports(Scratch):
    def report(self, body):
        path = self.folder / "report.xml"
        path.write_text(f'<?xml version="1.0"?><doctest><TestSuite>{body}</TestSuite></doctest>')
        return workbench.read_report(path)

    def test_failures_are_read_with_their_text(self):
        reports = self.report(
            '<TestCase name="good"><OverallResultsAsserts test_case_success="true"/></TestCase>'
            '<TestCase name="bad"><Expression success="false"><Original> x == 1 </Original><Expanded> 2 == 1 </Expanded>'
            '<Info> i := 3 </Info></Expression><OverallResultsAsserts test_case_success="false"/></TestCase>'
            '<TestCase name="left out" skipped="true"/>'
        )
        self.assertEqual(reports, {"good": "", "bad": "x == 1\n2 == 1\ni := 3"})

    def test_a_program_that_died_is_said_to_have_died(self):
        (self.folder / "report.xml").write_text("<doctest><TestSuite>")
        with self.assertRaisesRegex(BadVariant, "died"):
            workbench.read_report(self.folder / "report.xml")


class Results(Scratch):
    def test_a_run_of_some_variants_keeps_what_is_known_of_the_others(self):
        elsewhere = unittest.mock.patch.object(catalogue, "RESULTS", self.folder / "results.csv")
        elsewhere.start()
        self.addCleanup(elsewhere.stop)
        first = self.variant()
        second = dataclasses.replace(first, path=first.path.with_name("b_mistake.patch"))
        both = [first, second]
        catalogue.write_results([(v, [("a test", "old")], "") for v in both], both)
        catalogue.write_results([(second, [("a test", "new")], "")], both)
        self.assertEqual([(row["variant"], row["evidence"]) for row in catalogue.read_results()],
                         [("a_mistake", "old"), ("b_mistake", "new")])
        catalogue.write_results([], [second])
        self.assertEqual([row["variant"] for row in catalogue.read_results()], ["b_mistake"])


class Titles(Scratch):
    def test_names_keep_their_spelling(self):
        path = self.step / "breaks" / "dq_of_lse_in_k.patch"
        self.assertEqual(catalogue.title(dataclasses.replace(self.variant(), path=path)), "dQ of L in K")
        self.assertEqual(catalogue.sentence("a sum"), "A sum")


class Choosing(unittest.TestCase):
    def test_names_that_do_not_exist_are_refused(self):
        with self.assertRaisesRegex(BadVariant, "no variant is called 'nonsense'"):
            run.chosen(all_variants(), run.parse(["--variant", "nonsense"]))
        with self.assertRaisesRegex(BadVariant, "step 77 has no broken variants; those of 01 to "):
            run.chosen(all_variants(), run.parse(["--step", "77"]))
        with self.assertRaisesRegex(BadVariant, "no variant of step 02 is called 'missing_barrier'"):
            run.chosen(all_variants(), run.parse(["--step", "02", "--variant", "missing_barrier"]))

    def test_a_step_may_be_written_short_or_long(self):
        self.assertEqual(run.parse(["--step", "5", "--step", "06_tensor_cores"]).step, ["05", "06"])

    def test_no_job_at_all_is_refused(self):
        said = io.StringIO()
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(said):
            run.parse(["--jobs", "0"])
        self.assertIn("--jobs is 0; it must be at least 1", said.getvalue())

    def test_steps_and_names_choose_together(self):
        chosen = run.chosen(all_variants(), run.parse(["--step", "02", "--step", "05", "--variant", "maximum_overwritten"]))
        self.assertEqual([v.number for v in chosen], ["02", "05"])


if __name__ == "__main__":
    unittest.main()
