"""What both tests need: PyTorch or a skip, the library named on the command line, and where its GPU steps take tensors."""

import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "steps" / "library"), str(ROOT / "plots")]

try:
    import torch
except ImportError:
    print("SKIP: PyTorch is not installed for this Python (pip install torch)")
    sys.exit(77)

import flash_steps  # noqa: E402

torch.set_num_threads(1)
LIBRARY = flash_steps.Library(sys.argv.pop() if len(sys.argv) > 1 else None)
DEVICE = "cuda" if LIBRARY.backend == "cuda" else "cpu"
if DEVICE == "cuda" and not torch.cuda.is_available():
    print("SKIP: the library is built for CUDA and PyTorch finds no GPU")
    sys.exit(77)
