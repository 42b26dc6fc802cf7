"""profile_steps.py without a GPU: its reading of Nsight Compute's output, on a sample written by hand after the tool's
documented format, and a run under programs that stand in for ncu and nvidia-smi."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import sample

import profile_steps
import results

SAMPLE = pathlib.Path(__file__).resolve().parent / "ncu_sample.csv"
SCRIPT = sample.PLOTS / "profile_steps.py"
# What the chip of the sample knows: no per-warp stall share, no sum of device memory's directions.
KNOWN = {
    "gpu__time_duration",
    "dram__bytes",
    "lts__t_bytes",
    "sm__pipe_tensor_cycles_active",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active",
    "smsp__average_warp_latency_per_inst_issued",
    "smsp__sass_inst_executed_op_local_ld",
    "smsp__sass_inst_executed_op_local_st",
}

NCU = """#!/bin/sh
if [ "$1" = --query-metrics ]; then printf '{known}'; exit 0; fi
while [ "$1" != --log-file ]; do shift; done
cp "{log}" "$2"
echo 'environment ["a-machine", "a GPU", "PyTorch 2", "CUDA 13", "abc", "2026-01-02"]'
"""


class Reading(unittest.TestCase):
    def setUp(self):
        self.chosen = profile_steps.choose(KNOWN)
        self.options = profile_steps.options_of([])

    def found(self):
        launches = profile_steps.parse(SAMPLE.read_text())
        return {
            (step, variant): values
            for step, variant, values in profile_steps.per_step(
                launches, self.chosen, profile_steps.problem(self.options)
            )
        }

    def test_kernels_are_known_by_their_namespace_and_others_are_left_out(self):
        self.assertEqual(
            list(self.found()),
            [("04", "forward"), ("04", "scores_kernel"), ("04", "values_kernel"), ("08", "forward")],
        )

    def test_time_and_bytes_of_several_kernels_are_summed_and_the_rate_is_of_the_whole(self):
        whole = self.found()["04", "forward"]
        self.assertEqual((whole["time"], whole["dram_bytes"]), (3.0, 6e9))
        # 4 B H N N D operations with B = 4, H = 16, N = 4096, D = 128.
        self.assertAlmostEqual(whole["rate"], 4 * 4 * 16 * 4096**2 * 128 / 3e-3 / 1e9)
        self.assertNotIn("registers", whole)
        self.assertEqual(self.found()["04", "scores_kernel"]["registers"], 40)

    def test_sums_and_shares_are_computed_and_what_is_not_available_is_left_out(self):
        values = self.found()["08", "forward"]
        self.assertEqual(values["local_accesses"], 42)
        self.assertEqual(values["long_scoreboard"], 12.5)
        self.assertEqual(values["tensor_active"], 71.5)
        self.assertNotIn("l2_bytes", values)

    def test_causal_counts_the_pairs_up_to_the_diagonal(self):
        case = profile_steps.problem(profile_steps.options_of(["--causal", "--tokens", "512", "--dim", "64"]))
        self.assertEqual(profile_steps.flops(case), 4 * 32 * 32 * (512 * 513 / 2) * 64)

    def test_the_first_spelling_that_the_tool_knows_is_asked_for(self):
        self.assertIn(" / ", self.chosen["long_scoreboard"])
        self.assertNotIn("sm_busy", self.chosen)
        self.assertEqual(self.chosen["registers"], "launch__registers_per_thread")
        everything = profile_steps.choose(set())
        self.assertEqual(set(everything), set(profile_steps.METRICS))
        self.assertNotIn(" / ", everything["long_scoreboard"])

    def test_output_without_results_is_one_sentence_that_says_why(self):
        for text, words in (
            ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "ERR_NVGPUCTRPERM"),
            ("==ERROR== Failed to find metric x", "Failed to find metric x"),
            ("", "named no reason"),
        ):
            with self.subTest(text), self.assertRaisesRegex(profile_steps.ProfileError, words):
                profile_steps.parse(text)


class Running(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.place = pathlib.Path(self.directory.name)
        self.csv = self.place / "out.csv"

    def program(self, name, text):
        path = self.place / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run_script(self, log=SAMPLE):
        self.program("nvidia-smi", "#!/bin/sh\necho 'GPU 0: a GPU'\n")
        ncu = self.program("ncu", NCU.format(known="\\n".join(sorted(KNOWN)) + "\\n", log=log))
        command = [sys.executable, SCRIPT, "--ncu", ncu, "--csv", self.csv]
        path = f"{self.place}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})

    def test_a_run_writes_rows_that_results_reads(self):
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = results.read(self.csv)
        tensor = results.series(rows, "tensor_active", op="profile", step="08", variant="forward", backend="cuda")
        self.assertEqual([row["median"] for row in tensor], [71.5])
        self.assertEqual((tensor[0]["Nk"], tensor[0]["D"], tensor[0]["machine"]), (4096, 128, "a-machine"))
        self.assertIn("does not count here: l2_bytes", done.stdout)

    def test_a_refusal_of_the_tool_is_one_line_and_no_file(self):
        log = self.place / "refused.txt"
        log.write_text("==ERROR== ERR_NVGPUCTRPERM - no permission\n")
        done = self.run_script(log)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ERR_NVGPUCTRPERM", done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertFalse(self.csv.exists())

    def test_without_the_tool_it_is_skipped_with_the_reason(self):
        done = subprocess.run([sys.executable, SCRIPT, "--ncu", "no-such-ncu"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 77)
        self.assertIn("SKIP: Nsight Compute is not here", done.stdout)


if __name__ == "__main__":
    unittest.main()
