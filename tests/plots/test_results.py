"""Reading results, tables, the generated blocks and the tour: everything that needs no matplotlib."""

import contextlib
import io
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import sample

import experiments
import gpu_tables
import ladder
import peers
import readme
import results
import studies

TOUR = sample.PLOTS / "tour.py"
README = sample.ROOT / "README.md"


class Reading(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = pathlib.Path(self.directory.name) / "x.csv"

    def test_E11_a_broken_results_file_is_a_readable_error(self):
        for name, (contents, words) in sample.BROKEN.items():
            with self.subTest(name):
                self.path.write_text(contents)
                with self.assertRaises(results.ResultsError) as raised:
                    results.read(self.path)
                self.assertIn(str(self.path), str(raised.exception))
                self.assertIn(words, str(raised.exception))

    def test_a_byte_order_mark_and_windows_line_ends_are_accepted(self):
        self.path.write_bytes(b"\xef\xbb\xbf" + sample.text().replace("\n", "\r\n").encode())
        rows = results.read(self.path)
        self.assertEqual((len(rows), rows[0]["date"]), (len(list(sample.rows())), "2026-01-02"))

    def test_a_missing_file_and_a_binary_one_are_readable_errors(self):
        with self.assertRaisesRegex(results.ResultsError, "cannot be read"):
            results.read(self.path)
        self.path.write_bytes(b"\xff\xfe\x00")
        with self.assertRaisesRegex(results.ResultsError, "not a text file"):
            results.read(self.path)

    def test_numbers_and_sizes_are_converted(self):
        self.path.write_text(sample.text())
        rows = results.read(self.path)
        self.assertEqual(len(rows), len(list(sample.rows())))
        self.assertEqual((rows[0]["median"], rows[0]["Nk"], rows[0]["step"]), (11.0898, 2, "01"))

    def test_the_columns_are_those_the_bench_programs_write(self):
        header = (sample.ROOT / "common" / "bench" / "results.hpp").read_text()
        joined = header.replace('"\n    "', "")
        self.assertIn(f'"{",".join(results.COLUMNS)}"', joined)


class Writing(unittest.TestCase):
    """What peers.py and profile_steps.py append to."""

    def test_rows_are_appended_to_results_files_only(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "new" / "x.csv"
            peers.Results(path, ())
            self.assertEqual(path.read_text(), ",".join(results.COLUMNS) + "\n")
            peers.Results(path, ())
            self.assertEqual(path.read_text(), ",".join(results.COLUMNS) + "\n")
            for contents, words in (
                ("a,b\n1,2\n", "no results file"),
                (",".join(results.COLUMNS) + "\n05,forw", "ends within a line"),
            ):
                path.write_text(contents)
                with self.assertRaisesRegex(results.ResultsError, words):
                    peers.Results(path, ())
                self.assertEqual(path.read_text(), contents)


class Tables(unittest.TestCase):
    def setUp(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "x.csv"
            path.write_text(sample.text())
            self.rows = results.read(path)

    def test_the_ladder_shows_every_version_of_a_step_on_its_largest_unmasked_problem(self):
        header, lines = ladder.ladder(self.rows)
        self.assertEqual([line[header.index("step")] for line in lines], ["01", "01", "03", "03", "03", "04"])
        self.assertEqual({line[header.index("problem")] for line in lines[2:5]}, {"N = 1024, D = 64, fp32"})
        self.assertEqual([line[header.index("rate")] for line in lines[2:5]], ["2 GFLOP/s", "2.5 GFLOP/s", "150 GFLOP/s"])
        self.assertEqual(lines[-1][header.index("traffic per launch")], "1 MiB = formula")

    def test_a_step_with_a_backward_is_shown_by_it_in_both_modes(self):
        def of(variant, op, metric, unit, value):
            return sample.row("09", variant, op, 512, metric, unit, value, "bf16", backend="emulator")

        counted = [of(mode, "backward", "traffic_per_launch", "bytes", value) for mode, value in (("fast", 2048), ("deterministic", 1024))]
        timed = [of("beside peers", "forward", "time", "ms", 1.0)]
        timed += [of(f"{mode} beside peers", "backward", "time", "ms", 2.0) for mode in ("fast", "deterministic")]
        timed += [of("fast beside peers", "backward", "ratio_to_sdpa_flash", "", 1.25)]
        for more, column, values in (
            (counted, "traffic per launch", ["2 KiB", "1 KiB"]),
            (timed, "of SDPA flash", ["125 %", ""]),
            (counted + timed, "of SDPA flash", ["125 %", ""]),
        ):
            with tempfile.TemporaryDirectory() as directory:
                path = pathlib.Path(directory) / "x.csv"
                path.write_text(sample.text(*more))
                header, lines = ladder.ladder(results.read(path))
            lines = [line for line in lines if line[header.index("step")] == "09"]
            self.assertEqual([line[header.index("version")] for line in lines], ["fast", "deterministic"])
            self.assertEqual([line[header.index(column)] for line in lines], values)

    def test_what_was_tried_has_its_gain_over_what_was_kept(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "x.csv"
            head = ",".join(experiments.COLUMNS)
            path.write_text(f'{head}\n64,one,1.00,0.9,yes,m,2026-01-02\n64,"two, too",1.5,,no,m,2026-01-02\n64,three,1.1,,yes,m,2026-01-02\n')
            header, lines = experiments.table(experiments.read(path))
            self.assertEqual([line[1] for line in lines], ["one", "*two, too*", "three"])
            self.assertEqual([line[header.index("gain")] for line in lines], ["", "", "+10 %"])
            for broken in ("64,one,,,yes,m,d", "64,one,x,,yes,m,d", "64,one,-1,,yes,m,d", "64,one,1,,perhaps,m,d"):
                path.write_text(f"{head}\n{broken}\n")
                with self.assertRaisesRegex(results.ResultsError, "line 2"):
                    experiments.read(path)
            path.write_text("head_dim,change\n64,one\n")
            with self.assertRaisesRegex(results.ResultsError, "must begin with the line"):
                experiments.read(path)

    def test_a_step_has_its_overflow_times_memory_and_counts(self):
        self.assertEqual([t[0] for t in ladder.step_tables(self.rows, "01")], ["Where the naive softmax overflows", "Time and rate (softmax)"])
        self.assertEqual([t[0] for t in ladder.step_tables(self.rows, "03")], ["Time and rate (forward)", "Extra memory", "Counted"])
        self.assertEqual(ladder.step_tables(self.rows, "07"), [])

    def test_types_that_count_the_same_share_a_line_and_others_do_not(self):
        def of(variant, n, dtype, memory, issued):
            for metric, value in (("extra_memory", memory), ("traffic_issued", issued)):
                yield sample.row("09", variant, "backward", n, metric, "bytes", value, dtype, backend="emulator")

        problems = (("fast", 64, "bf16", 2048, 512), ("fast", 128, "bf16", 4096, 1024), ("slow", 64, "bf16", 1024, 512))
        problems += (("fast", 64, "fp16", 2048, 512), ("fast", 128, "fp16", 4096, 1023), ("slow", 64, "fp16", 1024, 512))
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "x.csv"
            path.write_text(sample.text(*(row for problem in problems for row in of(*problem))))
            tables = {title: lines for title, _, lines in ladder.step_tables(results.read(path), "09")}
        both, some = "N = 64, D = 64, bf16 and fp16", "N = 128, D = 64, "
        self.assertEqual(tables["Extra memory"], [[both, "2 KiB", "1 KiB"], [some + "bf16 and fp16", "4 KiB", ""]])
        self.assertEqual(
            tables["Counted"],
            [
                ["fast", both, "512 bytes"],
                ["fast", some + "bf16", "1 KiB"],
                ["slow", both, "512 bytes"],
                ["fast", some + "fp16", "1023 bytes"],
            ],
        )

    def test_a_time_has_a_line_for_every_type(self):
        rows = [sample.row("09", "fast", "forward", 64, "time", "ms", 1.5, dtype) for dtype in ("bf16", "fp16")]
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "x.csv"
            path.write_text(sample.text(*rows))
            ((_, _, lines),) = ladder.step_tables(results.read(path), "09")
        self.assertEqual([line[0] for line in lines], ["N = 64, D = 64, bf16", "N = 64, D = 64, fp16"])

    def test_quantities_are_short_and_exact(self):
        def quantity(value, unit):
            return ladder.quantity({"median": value, "unit": unit})

        self.assertEqual(quantity(33280, "bytes"), "32.5 KiB")
        self.assertEqual(quantity(2.0**34, "bytes"), "16 GiB")
        self.assertEqual(quantity(0, "bytes"), "0 bytes")
        self.assertEqual(quantity(1048576, "elements"), "1048576 elements")
        self.assertEqual(quantity(0.0123, "ms"), "12.3 us")
        self.assertEqual(quantity(2500, "ms"), "2.5 s")
        self.assertEqual(quantity(435200, "GFLOP/s"), "435 TFLOP/s")
        self.assertEqual(quantity(0.00012, "%"), "0.00012 %")


class GpuTables(unittest.TestCase):
    def setUp(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "x.csv"
            path.write_text(sample.text(*sample.gpu_rows()))
            self.rows = results.read(path)

    def test_the_ladder_compares_gpu_steps_at_4096_and_has_each_one_s_share_of_sdpa(self):
        header, lines = ladder.ladder(self.rows)
        shares = {line[header.index("step")]: line[header.index("of SDPA flash")] for line in lines}
        self.assertEqual((shares["03"], shares["05"], shares["08"]), ("", "3 %", "133 %"))
        problems = {line[header.index("problem")] for line in lines if line[header.index("step")] > "03"}
        self.assertEqual(problems, {"N = 4096, D = 128, bf16"})
        self.assertEqual([line[header.index("version")] for line in lines if line[0] == "08"], ["forward"])

    def test_peers_have_a_line_for_every_problem_and_a_column_for_every_step_and_peer(self):
        header, lines = gpu_tables.peers(self.rows)
        self.assertEqual(header, ["D", "mask", "N", *(f"step {s}" for s in ("04", "05", "06", "07", "08")), "SDPA flash"])
        self.assertEqual(len(lines), 8)
        self.assertEqual(lines[0], ["64", "none", "1024", "20 (0.07)", "10 (0.03)", "100 (0.33)", "200 (0.67)", "400 (1.33)", "300 (1.00)"])

    def test_the_ablation_says_what_each_idea_undone_changes(self):
        header, lines = gpu_tables.ablation(self.rows)
        self.assertEqual(header[1], "D = 64, N = 4096")
        self.assertEqual([line[:2] for line in lines], [["none: the step itself", "400 TFLOP/s"], ["no swizzle", "-75 %"], ["exp not folded", "0 %"]])

    def test_the_sweep_has_a_line_for_every_shape(self):
        _, lines = gpu_tables.sweep(self.rows)
        self.assertEqual(lines[0], ["64x32, 4 warps, 2 stages", "64 KiB", "100", "64 KiB", "100"])

    def test_the_profile_sets_device_memory_beside_the_least_and_names_kernels(self):
        header, lines = gpu_tables.profile(self.rows)
        # 4 N D elements of 2 bytes and 4 N bytes of L: N = 4096, D = 128 make 4,210,688.
        self.assertEqual(lines[0][:2] + [lines[0][header.index("device memory")]], ["04", "the call", "8.03 MiB (2 x least)"])
        self.assertEqual(lines[1][1], "scores_kernel")

    def test_a_target_that_is_missed_is_said_to_be(self):
        _, lines = gpu_tables.targets(self.rows)
        self.assertEqual([line[3] for line in lines], ["**no**", "yes"])
        self.assertEqual(lines[0][:3], ["tensor pipe active at least 50 %", "N = 4096, D = 128", "45 %"])

    def test_a_step_s_own_tables_leave_out_what_has_a_table_elsewhere(self):
        titles = [title for title, _, _ in ladder.step_tables(self.rows, "08")]
        self.assertEqual(titles[:1], ["Time and rate (forward)"])
        self.assertTrue(titles[1].startswith("Beside PyTorch"))
        self.assertIn("Tile shapes", [title for title, _, _ in ladder.step_tables(self.rows, "07")])


class Counters(unittest.TestCase):
    def setUp(self):
        self.rows = [row for path in results.committed() for row in results.read(path)]

    def test_the_tour_s_tables_fit_a_terminal_of_100_columns(self):
        tables = ladder.terminal(results.read(results.DATA / "epyc-avx512.csv"))
        self.assertEqual(len(tables), 2)
        for _, header, lines, words in tables:
            for line in (ladder.plain(header, lines) + "\n" + words).splitlines():
                self.assertLessEqual(len(line), 100, line)

    def test_every_gpu_step_is_counted_with_and_without_a_mask_and_equals_its_formula_without(self):
        problem, header, lines = ladder.emulator(self.rows)
        self.assertEqual(problem, "one head, N = 256, D = 64, bf16")
        shown = {(line[0], line[1]): dict(zip(header, line)) for line in lines}
        for step in ("04", "05", "06", "07", "08"):
            self.assertIn((step, "causal"), shown)
            self.assertTrue(shown[step, "none"]["per launch"].endswith(" ="), step)
        self.assertEqual(shown["06", "none"]["conflicts"], "64512")
        self.assertEqual((shown["08", "none"]["mma"], shown["08", "causal"]["mma"]), ("4096", "2304"))

    def test_counts_stand_beside_the_profiler_s_figures(self):
        header, lines = gpu_tables.compared(self.rows)
        conflicts = next(line for line in lines if line[0] == "06" and "ldmatrix" in line[1])
        self.assertEqual(conflicts[2:], ["2113929216", "2113930000", "1"])
        self.assertEqual({line[0] for line in lines}, {"04", "05", "06", "07", "08"})

    def test_a_lie_has_its_factor(self):
        def of(metric, unit, value):
            return sample.row("", "no synchronisation", "lie", 4096, metric, unit, value, "bf16", backend="cuda")

        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "x.csv"
            path.write_text(sample.text(of("claimed", "ms", 0.005), of("right", "ms", 1.25), of("factor", "", 0.004)))
            header, lines = gpu_tables.lies(results.read(path))
        self.assertEqual([line[0] for line in lines], ["no synchronisation"])
        self.assertEqual(lines[0][2:], ["5 us", "1.25 ms", "0.004"])


class Studies(unittest.TestCase):
    def setUp(self):
        self.rows = results.read(results.DATA / "study.csv")

    def test_every_table_is_full_of_numbers(self):
        for name, make in studies.TABLES.items():
            with self.subTest(name):
                header, lines = make(self.rows)
                self.assertGreater(len(lines), 2)
                for line in lines:
                    self.assertEqual(len(line), len(header))

    def test_sizes_and_errors_are_written_shortly(self):
        self.assertEqual([studies.number(x) for x in (1, 100, 1e4, 1e6, 1e8)], ["1", "100", "10000", "1e6", "1e8"])
        self.assertEqual([studies.error(x) for x in (0, 0.00191753, 3.849e-07, 0.44)], ["0", "1.9e-3", "3.8e-7", "4.4e-1"])

    def test_a_row_of_nan_and_a_wrong_row_are_told_apart(self):
        _, lines = studies.mask(self.rows)
        cells = {line[0]: line[1:] for line in lines}
        self.assertEqual(set(cells["-inf, guarded"]), {"right"})
        self.assertIn("**20 of 64 rows NaN**", cells["-inf, not guarded"])
        self.assertIn("**20 of 64 rows wrong**", cells["-1e30"])


class GeneratedBlocks(unittest.TestCase):
    def test_a_block_is_filled_and_stays_the_same_when_filled_again(self):
        text = "before\n<!-- generated:ladder -->\nold\n<!-- /generated -->\nafter\n"
        once = readme.filled(text, sample.ROOT / "README.md", [])
        self.assertEqual(once, text.replace("old\n", readme.NOTHING))
        self.assertEqual(readme.filled(once, sample.ROOT / "README.md", []), once)

    def test_an_unknown_block_is_an_error(self):
        with self.assertRaisesRegex(results.ResultsError, "generated block 'lader'"):
            readme.filled("<!-- generated:lader -->\n<!-- /generated -->", sample.ROOT / "README.md", [])

    def test_every_kind_of_block_has_something_to_say_without_results(self):
        for name in ("ladder", "peers", "profile", "measure-07", "ablation-08", "targets-08", "study-scale"):
            with self.subTest(name):
                self.assertEqual(readme.block(name, README, []), readme.NOTHING)
        for name in ("ladders", "measure-7", "study-x", "profile-08", "picture-x"):
            with self.subTest(name):
                self.assertIsNone(readme.block(name, README, []))

    def test_a_picture_is_linked_from_where_the_text_stands_once_it_is_there(self):
        with tempfile.TemporaryDirectory() as directory:
            place = pathlib.Path(directory)
            (place / "docs").mkdir()
            with unittest.mock.patch.object(readme, "IMAGES", place / "img"):
                page = place / "docs" / "page.md"
                self.assertEqual(readme.block("picture-roofline", page, []), readme.NOTHING)
                (place / "img").mkdir()
                (place / "img" / "roofline.svg").touch()
                self.assertIn("](../img/roofline.svg)", readme.block("picture-roofline", page, []))

    def test_every_committed_picture_is_shown_by_a_document(self):
        texts = [path.read_text(encoding="utf-8") for path in readme.readmes()]
        shown = {name for text in texts for name in re.findall(r"!\[[^\]]*\]\([^)]*plots/img/(\w+)\.svg\)", text)}
        self.assertEqual(shown, {path.stem for path in readme.IMAGES.glob("*.svg")})

    def test_every_picture_of_gpu_results_has_a_text_in_its_place(self):
        drawn = "".join((sample.PLOTS / f"pictures_{part}.py").read_text() for part in ("gpu", "backward"))
        for name in readme.PICTURES:
            self.assertRegex(drawn, rf"def {name}\(_?rows\):")

    def test_a_file_without_rows_for_a_block_adds_nothing_to_it(self):
        study = results.read(results.DATA / "study.csv")
        self.assertEqual(readme.block("ladder", README, [study]), readme.NOTHING)
        self.assertEqual(readme.block("peers", README, [study]), readme.NOTHING)

    def test_the_committed_blocks_are_what_the_committed_results_say(self):
        done = subprocess.run([sys.executable, sample.PLOTS / "readme.py", "--check"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)


    def test_check_says_what_is_out_of_date_and_changes_nothing(self):
        stale = "<!-- generated:ladder -->\nold\n<!-- /generated -->\n"
        with tempfile.TemporaryDirectory() as directory, unittest.mock.patch.object(results, "ROOT", pathlib.Path(directory)):
            page = results.ROOT / "README.md"
            for contents, arguments, status, words in (
                (stale, ["--check"], 1, "README.md is out of date (plots/readme.py writes it)\n"),
                (stale, [], 0, "README.md written\n"),
                (None, ["--check"], 0, ""),
            ):
                if contents:
                    page.write_text(contents)
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    self.assertEqual(readme.main(arguments), status)
                self.assertEqual(said.getvalue(), words)
                self.assertEqual(page.read_text() == stale, arguments == ["--check"] and status == 1)


class Incomplete(unittest.TestCase):
    def assert_made(self, name, show):
        for missing, rows in sample.incomplete(show):
            with self.subTest(table=name, missing=missing):
                show(rows)

    def test_a_block_of_incomplete_results_is_filled(self):
        pages = [path.read_text(encoding="utf-8") for path in readme.readmes()]
        names = {match[2] for text in pages for match in readme.BLOCK.finditer(text)}
        self.assertGreater(len(names), 30)
        for name in sorted(names):
            if not name.startswith(("picture-", "experiments-")):
                self.assert_made(name, lambda rows: readme.block(name, README, [rows]))

    def test_the_tour_s_tables_of_incomplete_results_are_made(self):
        self.assert_made("the tour's", lambda rows: [ladder.plain(*table[1:3]) for table in ladder.terminal(rows)])

    def test_a_cell_without_its_number_is_empty(self):
        rows = [row for row in sample.whole() if row["metric"] != "rate"]
        self.assertEqual(gpu_tables.backward(rows)[1][0], ["64", "none", "1024", "(1.60)", "(1.20)", "(1.00)", "(2.00)"])
        rows = [row for row in sample.whole() if row["metric"] != "traffic_per_block"]
        _, header, lines = ladder.emulator(rows)
        self.assertEqual({line[header.index("per block")] for line in lines}, {""})
        self.assertEqual({line[header.index("per launch")][-1] for line in lines}, {"="})

    def test_a_study_that_names_no_case_is_one_sentence(self):
        study = results.read(results.DATA / "study.csv")
        for variant in ("x", "x: logit", "x: logit .", ""):
            with self.subTest(variant), self.assertRaisesRegex(results.ResultsError, "the variant of a study is"):
                studies.logits([{**row, "variant": variant} for row in study])


BENCH = """#!/bin/sh
if [ "$1" = --describe ]; then echo "what it shows"; exit 0; fi
csv=$2
{body}
"""


class Tour(unittest.TestCase):
    """The tour over programs that stand in for the steps' benches."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.build = pathlib.Path(self.directory.name)
        self.csv = self.build / "out.csv"
        (self.build / "sample.csv").write_text(sample.text())

    def bench(self, number, body):
        path = self.build / f"step{number}_bench"
        path.write_text(BENCH.format(body=body.replace("SAMPLE", str(self.build / "sample.csv"))))
        path.chmod(0o755)

    def command(self):
        return [sys.executable, TOUR, "--build", self.build, "--out", self.csv, "--no-pictures"]

    def run_tour(self, *more, cwd=None, **environment):
        return subprocess.run(
            [*self.command(), *more],
            cwd=cwd,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )

    def assert_one_sentence(self, done, words):
        self.assertNotIn(done.returncode, (0, 120, -13), done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def left(self):
        """What lies in the build tree beside the benches."""
        return sorted(path.name for path in self.build.iterdir() if not path.name.endswith("_bench"))

    GOOD = "echo 'check    a case'\ncat SAMPLE > $csv\necho 'measure  tiled: time 1 ms'"

    def test_it_ends_with_the_table_and_the_results_file(self):
        self.bench("01", self.GOOD)
        done = self.run_tour()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("[1/1] step 01: what it shows", done.stdout)
        self.assertIn("N = 1024, D = 64, fp32", done.stdout)
        self.assertIn("out.csv", done.stdout)
        self.assertEqual(self.csv.read_text(), sample.text())

    def test_a_failing_check_ends_it_and_names_step_and_case(self):
        self.bench("01", self.GOOD)
        self.bench("02", "echo 'check    one'\necho 'FAILED   step 02, N = 7 causal: off by 1' >&2\nexit 1")
        self.bench("03", self.GOOD)
        done = self.run_tour()
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED   step 02, N = 7 causal: off by 1", done.stdout)
        self.assertNotIn("step 03", done.stdout)
        self.assertFalse(self.csv.exists())

    def test_a_crash_ends_it_and_names_the_step(self):
        self.bench("02", "kill -SEGV $$")
        done = self.run_tour()
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED   step 02: its bench ended with status -11", done.stdout)

    def test_a_measuring_error_is_shown_again_at_the_end(self):
        self.bench("01", self.GOOD + "\necho 'MEASURING ERROR  step 01, tiled: above the peak; not recorded'")
        done = self.run_tour()
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout.count("above the peak"), 2)

    def test_a_step_without_its_device_is_passed_over_with_the_reason(self):
        self.bench("01", self.GOOD)
        self.bench("04", "echo 'SKIP: no GPU here'\nexit 77")
        done = self.run_tour()
        self.assertEqual(done.returncode, 0)
        self.assertIn("SKIP: no GPU here", done.stdout)

    def test_without_bench_programs_it_says_what_to_do(self):
        done = self.run_tour()
        self.assertEqual(done.returncode, 1)
        self.assertIn("cmake --workflow --preset tour", done.stderr)

    def test_without_a_terminal_every_line_is_plain(self):
        self.bench("01", self.GOOD)
        done = self.run_tour()
        self.assertNotIn("\r", done.stdout)
        self.assertNotIn("\033", done.stdout)
        self.assertIn("check    a case", done.stdout)

    def test_a_build_tree_may_be_named_relative_to_here(self):
        self.bench("01", self.GOOD)
        for name in (".", f"../{self.build.name}"):
            with self.subTest(name):
                done = self.run_tour("--build", name, cwd=self.build)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("[1/1] step 01", done.stdout)

    def test_nothing_but_the_results_file_is_written_or_removed(self):
        for name in ("out.part", "out.csv.part"):
            (self.build / name).write_text("somebody's\n")
        before = self.left()
        self.bench("01", self.GOOD)
        self.assertEqual(self.run_tour().returncode, 0)
        self.assertEqual(self.left(), sorted([*before, "out.csv"]))
        self.assertEqual((self.build / "out.part").read_text(), "somebody's\n")
        self.assertEqual(self.csv.stat().st_mode & 0o777, (self.build / "sample.csv").stat().st_mode & 0o777)
        self.bench("02", "echo x > $csv\nexit 3")
        self.assertEqual(self.run_tour().returncode, 1)
        self.assertEqual(self.left(), sorted([*before, "out.csv"]))
        self.assertEqual(self.csv.read_text(), sample.text())

    def test_results_that_cannot_be_written_end_it_before_anything_is_measured(self):
        self.bench("01", f"touch {self.build}/measured\n" + self.GOOD)
        os.mkfifo(self.build / "pipe")
        for out in ("sample.csv/x.csv", ".", "", "step01_bench/..", "pipe", "/proc/x.csv", "n" * 300):
            with self.subTest(out):
                done = self.run_tour("--out", out, cwd=self.build)
                self.assert_one_sentence(done, "cannot write results to")
                self.assertNotIn("measured", self.left())

    def test_pictures_that_cannot_be_written_end_it_before_anything_is_measured(self):
        self.bench("01", f"touch {self.build}/measured\n" + self.GOOD)
        command = [argument for argument in self.command() if argument != "--no-pictures"]
        for images in ("sample.csv", "sample.csv/img", "/proc/img"):
            with self.subTest(images):
                done = subprocess.run([*command, "--images", images], cwd=self.build, capture_output=True, text=True)
                self.assert_one_sentence(done, "cannot write pictures to")
                self.assertNotIn("measured", self.left())

    def test_an_output_that_takes_nothing_is_one_sentence(self):
        self.bench("01", self.GOOD)
        before = self.left()
        reader, closed_pipe = os.pipe()
        os.close(reader)
        with open("/dev/full", "wb") as full:
            for out in (full, closed_pipe):
                done = subprocess.run(self.command(), stdout=out, stderr=subprocess.PIPE, text=True)
                self.assert_one_sentence(done, "cannot write to standard output")
                self.assertEqual(self.left(), before)
        os.close(closed_pipe)
        done = subprocess.run(
            ["sh", "-c", '"$@" >&-', "sh", *self.command()], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self.assert_one_sentence(done, "cannot write to standard output")
        self.assertEqual(self.left(), before)

    def test_a_bench_may_print_anything(self):
        self.bench("01", "printf 'note \\377\\000 \\303\\251\\n'\n" + self.GOOD)
        for environment in ({}, {"PYTHONIOENCODING": "ascii"}):
            done = self.run_tour(**environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("note", done.stdout)

    def test_a_bench_that_cannot_be_run_is_named(self):
        bench = self.build / "step01_bench"
        bench.write_bytes(b"\x7fELF but no program")
        bench.chmod(0o755)
        before = self.left()
        done = self.run_tour()
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertIn("FAILED   step 01: ", done.stdout)
        self.assertIn("step01_bench cannot be run: Exec format error", done.stdout)
        self.assertEqual(self.left(), before)

    def test_results_that_a_bench_broke_are_one_sentence(self):
        self.bench("01", "echo nonsense > $csv")
        before = self.left()
        self.assert_one_sentence(self.run_tour(), "lacks the columns")
        self.assertEqual(self.left(), before)

    def test_a_step_that_is_not_there_is_named_with_those_that_are(self):
        self.bench("01", self.GOOD)
        self.bench("03", self.GOOD)
        for steps in ("99", "01,99"):
            self.assert_one_sentence(self.run_tour("--steps", steps), "no step 99; there are 01, 03")
        self.assertIn("[1/1] step 03", self.run_tour("--steps", "3").stdout)

    def test_steps_that_are_no_numbers_are_said_to_be_none(self):
        self.bench("01", self.GOOD)
        for program in ("tour.py", "peers.py", "profile_steps.py"):
            for steps in ("", ",", "a", "1,", "1,-2", "1_0", "\u0663", "9" * 5000):
                command = [sys.executable, sample.PLOTS / program, f"--steps={steps}"]
                done = subprocess.run(command, capture_output=True, text=True)
                with self.subTest(program=program, steps=steps[:9]):
                    self.assertEqual(done.returncode, 2)
                    last = done.stderr.splitlines()[-1]
                    self.assertTrue(last.endswith("is not a list of whole numbers such as 4,5,8"), last)
                    self.assertLess(len(last), 200)

    def on_a_terminal(self, **environment):
        self.bench("01", self.GOOD)
        main_end, program_end = pty.openpty()
        process = subprocess.Popen(
            self.command(), stdout=program_end, stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm", **environment}
        )
        os.close(program_end)
        output = io.BytesIO()
        while True:
            try:
                block = os.read(main_end, 4096)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            output.write(block)
        os.close(main_end)
        self.assertEqual(process.wait(), 0)
        return output.getvalue().decode()

    def test_on_a_terminal_progress_overwrites_itself_in_colour(self):
        shown = self.on_a_terminal(NO_COLOR="")
        self.assertIn("\r\033[K  check    a case", shown)
        self.assertIn("\033[1m", shown)

    def test_NO_COLOR_is_respected(self):
        self.assertNotRegex(self.on_a_terminal(NO_COLOR="1"), r"\033\[[0-9;]*m")


if __name__ == "__main__":
    unittest.main()
