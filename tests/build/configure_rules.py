"""What configuring must accept or refuse, each in a tree of its own with one sentence as the reason.

Only the shared build file is configured, not the steps, so that each case takes about a second.
"""

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = os.environ.get("CMAKE", "cmake")
CTEST = os.environ.get("CTEST", "ctest")

PROBE = """cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
include("{root}/common/cmake/FlashSteps.cmake")
message(STATUS "probe: ${{FLASH_STEPS_RESOLVED_BACKEND}} ${{CMAKE_CUDA_ARCHITECTURES}}")
"""


def path_without(*tools):
    """The PATH without the directories that hold one of the tools."""
    directories = os.environ["PATH"].split(os.pathsep)
    holds = lambda directory: any(os.path.exists(os.path.join(directory, tool)) for tool in tools)
    return os.pathsep.join(directory for directory in directories if not holds(directory))


class Configure(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = pathlib.Path(self.directory.name)
        (self.path / "CMakeLists.txt").write_text(PROBE.format(root=ROOT.as_posix()))

    def configure(self, *options, build="build", **environment):
        """Exit status and all output, joined to one line because CMake wraps its messages."""
        done = subprocess.run(
            [CMAKE, "-S", self.path, "-B", self.path / build, *options],
            capture_output=True,
            text=True,
            env={**os.environ, "CUDACXX": "", **environment},
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def fake_tool(self, name, script):
        tools = self.path / "tools"
        tools.mkdir(exist_ok=True)
        tool = tools / name
        tool.write_text("#!/bin/sh\n" + script)
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        return tools

    def test_the_emulator_needs_nothing_but_a_compiler(self):
        status, output = self.configure("-DFLASH_STEPS_BACKEND=emulator", PATH=path_without("nvcc", "nvidia-smi"))
        self.assertEqual(status, 0, output)
        self.assertIn("probe: emulator", output)

    def test_a_path_that_a_build_cannot_bear_is_refused_and_blanks_are_not(self):
        for build in ("quo'te", "am&p", "bra[1]"):
            with self.subTest(build=build):
                status, output = self.configure("-DFLASH_STEPS_BACKEND=emulator", build=build)
                self.assertNotEqual(status, 0)
                self.assertIn("a path must not contain any of ' \" & # ; \\ [ ]", output)
        status, output = self.configure("-DFLASH_STEPS_BACKEND=emulator", build="with blanks (é)")
        self.assertEqual(status, 0, output)

    def test_head_dimensions_may_come_in_any_order_and_twice(self):
        lists = self.path / "CMakeLists.txt"
        include = f'include("{ROOT.as_posix()}/common/cmake/HeadDims.cmake")\n'
        lists.write_text(lists.read_text() + include + 'message(STATUS "dims: ${FLASH_STEPS_HEAD_DIMS}")\n')
        _, output = self.configure("-DFLASH_STEPS_BACKEND=emulator", "-DFLASH_STEPS_HEAD_DIMS=128;256;64;128")
        self.assertIn("dims: 64;128;256", output)

    def test_E1_auto_without_nvcc_is_the_emulator(self):
        status, output = self.configure(PATH=path_without("nvcc"))
        self.assertEqual(status, 0, output)
        self.assertIn("probe: emulator", output)

    def test_E1_cuda_without_nvcc_is_refused_in_one_sentence(self):
        status, output = self.configure("-DFLASH_STEPS_BACKEND=cuda", PATH=path_without("nvcc"))
        self.assertNotEqual(status, 0)
        self.assertEqual(output.count("CMake Error"), 1, output)
        self.assertIn("the cuda back end needs nvcc on the PATH", output)
        self.assertIn("-DFLASH_STEPS_BACKEND=emulator", output)

    def test_E1_without_a_gpu_the_architectures_are_named_and_never_native(self):
        if shutil.which("nvcc") is None:
            self.skipTest("no nvcc on the PATH")
        no_gpu = self.fake_tool("nvidia-smi", "echo 'No devices were found'; exit 6\n")
        status, output = self.configure(
            "-DFLASH_STEPS_BACKEND=cuda", PATH=f"{no_gpu}{os.pathsep}{os.environ['PATH']}"
        )
        self.assertEqual(status, 0, output)
        self.assertIn("probe: cuda 80;90", output)

    def test_E5_a_target_without_the_instructions_is_refused_before_anything_is_compiled(self):
        for target in ("75", "90;70"):
            with self.subTest(target=target):
                status, output = self.configure("-DFLASH_STEPS_BACKEND=cuda", f"-DCMAKE_CUDA_ARCHITECTURES={target}")
                self.assertNotEqual(status, 0)
                self.assertIn("the GPU steps need sm_80 or newer", output)

    def test_E4_a_host_compiler_that_nvcc_refuses_is_named(self):
        tools = self.fake_tool("nvcc", "echo 'error: -- unsupported GNU version!' >&2; exit 1\n")
        status, output = self.configure(
            "-DFLASH_STEPS_BACKEND=cuda", PATH=f"{tools}{os.pathsep}{path_without('nvcc')}"
        )
        self.assertNotEqual(status, 0)
        self.assertIn("host compiler it supports (here: /", output)

    def test_E6_flags_that_assume_finite_numbers_are_refused(self):
        for flag in ("-ffast-math", "-Ofast", "-ffinite-math-only", "-funsafe-math-optimizations", "-fassociative-math"):
            with self.subTest(flag=flag):
                shutil.rmtree(self.path / "build", ignore_errors=True)
                status, output = self.configure(CXXFLAGS=flag)
                self.assertNotEqual(status, 0)
                self.assertIn("flash-steps needs -inf, NaN", output)
        shutil.rmtree(self.path / "build", ignore_errors=True)
        status, output = self.configure("-DCMAKE_CXX_FLAGS_RELEASE=-O2 -ffast-math")
        self.assertNotEqual(status, 0)

    def test_E6_a_source_compiled_with_fast_math_is_refused_by_the_contract(self):
        source = self.path / "use.cpp"
        source.write_text('#include "common/attention.hpp"\n')
        compiler = os.environ.get("CXX") or "c++"
        for flag, accepted in (("-O2", True), ("-ffast-math", False), ("-ffinite-math-only", False)):
            with self.subTest(flag=flag):
                done = subprocess.run(
                    [compiler, "-std=c++20", flag, "-I", ROOT, "-fsyntax-only", source],
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(done.returncode == 0, accepted, done.stderr)

    def test_an_unknown_back_end_is_refused_by_name(self):
        status, output = self.configure("-DFLASH_STEPS_BACKEND=metal")
        self.assertNotEqual(status, 0)
        self.assertIn("FLASH_STEPS_BACKEND is 'metal'; it must be auto, emulator or cuda", output)

    def test_E8_the_test_presets_fail_when_there_is_no_test(self):
        shutil.copy(ROOT / "CMakePresets.json", self.path)
        (self.path / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(empty LANGUAGES NONE)\nenable_testing()\n"
        )
        run = lambda *command: subprocess.run(command, cwd=self.path, capture_output=True, text=True)
        configured = run(CMAKE, "--preset", "default")
        self.assertEqual(configured.returncode, 0, configured.stderr)
        tested = run(CTEST, "--preset", "default")
        self.assertNotEqual(tested.returncode, 0, tested.stdout)
        self.assertIn("No tests were found", tested.stdout + tested.stderr)


if __name__ == "__main__":
    unittest.main()
