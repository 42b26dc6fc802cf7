"""What the shared library must find at run time: `linkage.py LIBRARY`."""

import shutil
import subprocess
import sys
import unittest

LIBRARY = sys.argv.pop() if len(sys.argv) > 1 else ""


def needed(path):
    text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]


def exported(path):
    command = ["nm", "-D", "--defined-only", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in text.splitlines()]


class Linkage(unittest.TestCase):
    def test_E3_the_library_starts_on_a_machine_without_a_gpu_driver(self):
        libraries = needed(LIBRARY)
        self.assertTrue(any(name.startswith("libc.") for name in libraries), libraries)
        self.assertEqual([name for name in libraries if name.startswith("libcuda.")], [])

    def test_only_the_c_interface_is_exported(self):
        names = exported(LIBRARY)
        self.assertIn("flash_steps_forward", names)
        self.assertEqual([name for name in names if not name.startswith("flash_steps_")], [])


if __name__ == "__main__":
    if not (shutil.which("readelf") and shutil.which("nm")):
        print("SKIP: readelf and nm read ELF files only, and are not here")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
