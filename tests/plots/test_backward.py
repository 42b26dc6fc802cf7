"""Tables of the backward, and the file of losses that plots/train.py writes."""

import pathlib
import tempfile
import unittest

import sample

import gpu_tables
import ladder
import readme
import results
import training_results

README = results.ROOT / "README.md"


def read(*lines):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.csv"
        path.write_text(sample.text(*lines))
        return results.read(path)


class Tables(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rows = read(*sample.gpu_rows())

    def test_the_backward_has_a_line_for_every_problem_and_a_column_for_each_mode_and_peer(self):
        header, lines = gpu_tables.backward(self.rows)
        self.assertEqual(header, ["D", "mask", "N", "fast", "deterministic", "SDPA flash", "SDPA cuDNN"])
        self.assertEqual(len(lines), 8)
        self.assertEqual(lines[0], ["64", "none", "1024", "400 (1.60)", "300 (1.20)", "250 (1.00)", "500 (2.00)"])
        self.assertEqual(lines[-1], ["128", "causal", "4096", "200 (1.60)", "150 (1.20)", "125 (1.00)", "250 (2.00)"])
        self.assertEqual(gpu_tables.forward_backward(self.rows), (header, lines))

    def test_modes_have_their_times_their_ratio_and_their_memory(self):
        header, lines = gpu_tables.backward_modes(self.rows)
        self.assertEqual(len(lines), 8)
        self.assertEqual(lines[0][:3] + lines[0][5:], ["64", "none", "1024", "75 %", "264 KiB", "8 KiB"])
        self.assertEqual(header[5], "its speed")

    def test_ratios_to_sdpa_flash_are_summed_up_by_version_and_head_dimension(self):
        header, lines = gpu_tables.against_flash(self.rows)
        self.assertEqual(header, ["speed / SDPA flash", "D = 64", "D = 128", "D = 64 and 128", "D = 256"])
        cells = {line[0]: line[1:] for line in lines}
        self.assertEqual(cells["backward: step 09, fast"], ["1.60 (1.60)", "1.60 (1.60)", "1.60 (1.60)", ""])
        self.assertEqual(cells["backward: SDPA cuDNN"][0], "2.00 (2.00)")
        one = {"op": "backward", "variant": gpu_tables.FAST, "metric": "time", "D": 64, "Nk": 1024, "mask": "none"}
        slower = [dict(row, median=4 * row["median"]) if one.items() <= row.items() else row for row in self.rows]
        cells = {line[0]: line[1:] for line in gpu_tables.against_flash(slower)[1]}
        self.assertEqual(cells["backward: step 09, fast"][:2], ["1.13 (0.40)", "1.60 (1.60)"])

    def test_a_problem_that_lacks_a_mode_has_no_line(self):
        some = [row for row in self.rows if (row["variant"], row["Nk"]) != (gpu_tables.DETERMINISTIC, 4096)]
        self.assertEqual({line[2] for line in gpu_tables.backward_modes(some)[1]}, {"1024"})

    def test_errors_stand_by_type_mask_and_length(self):
        header, lines = gpu_tables.gradient_error(self.rows)
        self.assertEqual(header[:5], ["type", "D", "mask", "N", "fast: dQ, dK, dV"])
        self.assertEqual(len(lines), 8)
        self.assertEqual(lines[0], ["bf16", "128", "none", "1024", *3 * ["2.5e-3, 2.5e-3, 2.5e-3"]])
        self.assertEqual(lines[-1], ["fp16", "128", "causal", "4096", *3 * ["3.2e-4, 3.2e-4, 3.2e-4"]])

    def test_the_spread_of_repeated_runs_is_zero_in_the_deterministic_mode(self):
        _, lines = gpu_tables.gradient_spread(self.rows)
        self.assertEqual(lines[0], ["N = 4096, D = 64, bf16", "fast", "5", "1.5e-3"])
        self.assertEqual(lines[1], ["N = 4096, D = 64, bf16", "deterministic", "5", "0"])

    def test_the_ladder_has_both_modes_and_their_shares_of_the_peers_backward(self):
        header, lines = ladder.ladder(self.rows)
        found = {line[header.index("version")]: line for line in lines if line[0] == "09"}
        self.assertEqual(set(found), {"fast", "deterministic"})
        share = header.index("of SDPA flash")
        self.assertEqual([found[mode][share] for mode in ("fast", "deterministic")], ["160 %", "120 %"])

    def test_rows_of_a_steps_own_bench_stand_for_it_and_take_the_share_from_the_rows_beside_peers(self):
        own = (
            sample.row("09", mode, "backward", 4096, metric, unit, value, "bf16", 128, backend="cuda")
            for mode in ("fast", "deterministic")
            for metric, unit, value in (("time", "ms", 7.0), ("rate", "GFLOP/s", 4e5))
        )
        header, lines = ladder.ladder(read(*sample.gpu_rows(), *own))
        lines = [line for line in lines if line[0] == "09"]
        self.assertEqual([line[header.index("version")] for line in lines], ["fast", "deterministic"])
        self.assertEqual([line[header.index("time")] for line in lines], ["7 ms", "7 ms"])
        self.assertEqual([line[header.index("of SDPA flash")] for line in lines], ["160 %", "120 %"])

    def test_the_forwards_table_has_no_row_of_the_backward(self):
        columns, _ = gpu_tables.peers([row for row in self.rows if readme.beside_or_peer(row)])
        self.assertNotIn("step 09", columns)

    def test_blocks_of_the_backward(self):
        for name in ("backward_table", "forward_backward", "backward_modes", "gradient_error", "gradient_spread"):
            with self.subTest(name):
                self.assertEqual(readme.block(name, README, []), readme.NOTHING)
                text = readme.block(name, README, [self.rows])
                self.assertIn("Measured on a-machine", text)
                self.assertGreater(text.count("\n|"), 3)


class Training(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.place = pathlib.Path(folder.name)

    def write(self, name, backend):
        environment = backend, name, "a device", "PyTorch", "", "abc", "2026-01-02"
        training_results.write(self.place / "training" / name, {"a, b": [3.5, 1.25], "c": [3.5, 1.0]}, "a problem", environment)

    def test_losses_come_back_as_they_were_written(self):
        self.write("x.csv", "emulator")
        found = training_results.read(self.place / "training" / "x.csv")
        self.assertEqual(found.losses, {"a, b": [(1, 3.5), (2, 1.25)], "c": [(1, 3.5), (2, 1.0)]})
        self.assertEqual((found.problem, found.backend, found.device), ("a problem", "emulator", "a device"))

    def test_a_gpus_training_is_shown_where_there_is_one(self):
        self.assertIsNone(training_results.newest(self.place / "training"))
        self.write("a.csv", "emulator")
        self.assertEqual(training_results.newest(self.place / "training").backend, "emulator")
        self.write("b.csv", "cuda")
        self.assertEqual(training_results.newest(self.place / "training").backend, "cuda")

    def test_E11_a_broken_file_is_one_readable_sentence(self):
        header = ",".join(training_results.COLUMNS)
        row = "a,1,{},p,cuda,m,d,c,f,abc,2026-01-02"
        path = self.place / "x.csv"
        for contents, words in (
            ("", "does not begin with the line attention,training_step,loss"),
            (header + "\n", "has a header but no results"),
            (f"{header}\n{row.format('nan')}\n", "not a training step and a finite loss"),
            (f'{header}\n{row.format(chr(34) + "1,5" + chr(34))}\n', "not a training step and a finite loss"),
            (f"{header}\na\n", "not a training step and a finite loss"),
        ):
            with self.subTest(words):
                path.write_text(contents)
                with self.assertRaisesRegex(results.ResultsError, words):
                    training_results.read(path)
        with self.assertRaisesRegex(results.ResultsError, "cannot be read"):
            training_results.read(self.place / "nowhere.csv")

    def test_the_committed_losses_fall_and_stay_together(self):
        found = training_results.newest()
        first, second = found.losses.values()
        self.assertEqual(len(first), len(second))
        for (_, a), (_, b) in zip(first, second):
            self.assertLessEqual(abs(a - b), 0.05)
        for some in (first, second):
            self.assertLess(sum(loss for _, loss in some[-5:]) / 5, 0.6 * some[0][1])


if __name__ == "__main__":
    unittest.main()
