"""`symbols.py OBJECT`: the kernel of an instruction set defines one global symbol, its table, and no weak one.

The linker keeps a single copy of a weak (inline) function for the whole program. Were it this object's, code for wide
vectors would run on processors without them.
"""

import shutil
import subprocess
import sys

if not shutil.which("nm"):
    print("SKIP: nm is not here")
    sys.exit(77)
text = subprocess.run(["nm", "--extern-only", "--defined-only", sys.argv[1]], capture_output=True, text=True,
                      check=True).stdout
names = [line.split()[-1] for line in text.splitlines()]
if len(names) != 1 or "simd_kernel_" not in names[0]:
    print(f"{sys.argv[1]} defines {names}; it may define its table simd_kernel_* alone")
    sys.exit(1)
