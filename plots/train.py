"""Trains a small transformer twice from the same start, with this project's attention and with PyTorch's: the losses must
fall alike.

    train.py [--csv FILE] [--library FILE] [--steps N]

A sequence uses a few letters of its own, and its second half repeats the first: the model must look back to see which letters
these are, and where it stands. The loss is that of the second half. Weights and sums are fp32, what enters the attention is
bf16. A library built for CUDA trains on the GPU, in seconds; one built for the emulator trains a smaller model on the CPU, in
less than a minute. The CSV file is written anew; its format is that of plots/training_results.py. The library is the newest
under build/, unless another one is named. Ends with 1 when the losses do not fall or part, with 77 where there is no PyTorch.
"""

import argparse
import contextlib
import dataclasses
import math
import pathlib
import sys

if __name__ == "__main__" and {"-h", "--help"} & set(sys.argv[1:]):  # before PyTorch, which need not be there
    print(__doc__.strip())
    sys.exit()

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "steps" / "library"), str(ROOT / "plots")]

import peers  # noqa: E402
import training_results  # noqa: E402

try:
    import torch
except ImportError:
    print("SKIP: PyTorch is not installed for this Python (pip install torch)")
    sys.exit(peers.SKIPPED)

import flash_steps  # noqa: E402

OURS = "flash_attention, step 09"


@dataclasses.dataclass(frozen=True)
class Problem:
    batch: int
    tokens: int
    heads: int
    head_dim: int
    letters: int
    own_letters: int  # of a sequence
    steps: int
    rate: float

    def __str__(self):
        return (
            f"one block, B = {self.batch}, H = {self.heads}, N = {self.tokens}, D = {self.head_dim}, causal, bf16; "
            f"{self.own_letters} of {self.letters} letters; Adam {self.rate:g}"
        )


ON_GPU = Problem(batch=16, tokens=512, heads=4, head_dim=64, letters=32, own_letters=4, steps=100, rate=3e-3)
ON_EMULATOR = Problem(batch=4, tokens=32, heads=2, head_dim=16, letters=16, own_letters=2, steps=50, rate=1e-2)
FALLEN = 0.6  # of the first loss: what the mean of the last five may be
APART = 0.05  # nats by which the two losses may differ at any step


class Block(torch.nn.Module):
    def __init__(self, problem, attention):
        super().__init__()
        width = problem.heads * problem.head_dim
        self.heads, self.attention = problem.heads, attention
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.to_qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.to_out = torch.nn.Linear(width, width, bias=False)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width))

    def forward(self, x):  # (B, N, H D)
        qkv = self.to_qkv(self.norms[0](x)).to(torch.bfloat16)
        # Views of (B, N, 3, H, D) as (B, H, N, D): no copy on the way in, and none on the way out.
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.to_out(self.attention(q, k, v).transpose(1, 2).flatten(2).float())
        return x + self.mlp(self.norms[1](x))


class Model(torch.nn.Module):
    def __init__(self, problem, attention):
        super().__init__()
        width = problem.heads * problem.head_dim
        self.letters = torch.nn.Embedding(problem.letters, width)
        self.block = Block(problem, attention)
        self.norm = torch.nn.LayerNorm(width)
        self.to_letters = torch.nn.Linear(width, problem.letters)
        # A place of the second half is that of the first whose letter comes next.
        places = torch.arange(problem.tokens)
        places[problem.tokens // 2 - 1 :] -= problem.tokens // 2 - 1
        waves = places[:, None] * torch.exp(-math.log(1e4) * torch.arange(0, width, 2) / width)
        self.register_buffer("places", torch.stack([waves.sin(), waves.cos()], -1).flatten(1))

    def forward(self, tokens):
        return self.to_letters(self.norm(self.block(self.letters(tokens) + self.places)))


def sequences(problem, make):
    own = torch.rand(problem.batch, problem.letters, generator=make).argsort(1)[:, : problem.own_letters]
    half = own.gather(1, torch.randint(problem.own_letters, (problem.batch, problem.tokens // 2), generator=make))
    return torch.cat([half, half], 1)


def train(problem, attention, device, seed=1):
    """The loss of every step. The same seed gives the same weights and the same letters."""
    torch.manual_seed(seed)
    model = Model(problem, attention).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=problem.rate, betas=(0.9, 0.98))
    make = torch.Generator().manual_seed(seed)
    half, losses = problem.tokens // 2, []
    for _ in range(problem.steps):
        tokens = sequences(problem, make).to(device)
        scores = model(tokens)[:, half - 1 : -1]
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, half:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def attentions(library, on_gpu):
    """name -> (attention, context in which to train)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def ours(q, k, v):
        return flash_steps.flash_attention(q, k, v, causal=True, library=library)

    def pytorchs(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    flash = ("SDPA flash", pytorchs, lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION))
    on_cpu = ("SDPA", pytorchs, contextlib.nullcontext)
    return [(OURS, ours, contextlib.nullcontext), flash if on_gpu else on_cpu]


def what_is_wrong(losses):
    """A sentence, or nothing: the losses of every attention must fall, and stay together."""
    for name, some in losses.items():
        last = sum(some[-5:]) / len(some[-5:])
        if not last <= FALLEN * some[0]:
            return f"the loss with {name} went from {some[0]:.3f} to {last:.3f}"
    apart = [abs(a - b) for a, b in zip(*losses.values(), strict=True)]
    if not max(apart) <= APART:
        return f"the losses are {max(apart):.3f} apart at training step {apart.index(max(apart)) + 1}"
    return ""


def environment(on_gpu):
    """backend, machine, device, compiler, flags, commit, date."""
    if on_gpu:
        return "cuda", *peers.environment_of(torch)
    machine = peers.machine_name("cpu")
    return "emulator", machine, "CPU, emulator", f"PyTorch {torch.__version__}", "", peers.commit(), peers.today()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--library", dest="loaded", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args(arguments)
    if options.steps is not None and options.steps < 2:
        parser.error(f"--steps is {options.steps}; whether a loss falls takes at least 2")
    try:
        library = flash_steps.Library((options.loaded))
    except flash_steps.FlashStepsError as error:
        sys.exit(f"train.py: {error}")
    on_gpu = library.backend == "cuda"
    if on_gpu and not torch.cuda.is_available():
        return peers.skip("the library is built for CUDA and PyTorch finds no GPU")
    torch.set_float32_matmul_precision("highest")  # no TF32: only the attention differs
    problem = ON_GPU if on_gpu else ON_EMULATOR
    if options.steps:
        problem = dataclasses.replace(problem, steps=options.steps)
    print(problem, flush=True)
    losses = {}
    for name, attention, context in attentions(library, on_gpu):
        with context():
            losses[name] = train(problem, attention, "cuda" if on_gpu else "cpu")
        some = losses[name]
        shown = ", ".join(f"{some[i]:.3f}" for i in sorted({*range(0, len(some), max(1, len(some) // 8)), len(some) - 1}))
        print(f"{name}: {shown}", flush=True)
    apart = max(abs(a - b) for a, b in zip(*losses.values()))
    print(f"largest difference of the two losses: {apart:.4f}")
    if options.csv:
        training_results.write(options.csv, losses, str(problem), environment(on_gpu))
    wrong = what_is_wrong(losses)
    if wrong:
        print(f"FAILED   {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
