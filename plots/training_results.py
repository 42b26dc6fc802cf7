"""The losses that plots/train.py writes: a CSV of its own under plots/data/training, one file per machine, one row per
training step and attention, '.' as the decimal mark."""

import csv
import dataclasses
import math
import pathlib

from results import DATA, ResultsError

COLUMNS = "attention training_step loss problem backend machine device compiler flags commit date".split()
TRAINING = DATA / "training"


@dataclasses.dataclass
class Training:
    losses: dict  # attention -> [(training step, loss)]
    problem: str
    backend: str
    device: str


def write(path, losses, problem, environment):
    """`losses`: attention -> list of losses. `environment`: the columns from backend on."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for attention, some in losses.items():
            rows.writerows([attention, step, f"{loss:.6g}", problem, *environment] for step, loss in enumerate(some, 1))


def read(path):
    losses, row = {}, {}
    try:
        with pathlib.Path(path).open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames != COLUMNS:
                raise ResultsError(f"{path} does not begin with the line {','.join(COLUMNS)}")
            for row in rows:
                loss = float(row["loss"])
                if not math.isfinite(loss):
                    raise ValueError
                losses.setdefault(row["attention"], []).append((int(row["training_step"]), loss))
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        raise ResultsError(f"{path} has a row that is not a training step and a finite loss: {row}") from None
    if not losses:
        raise ResultsError(f"{path} has a header but no results")
    return Training(losses, row["problem"], row["backend"], row["device"])


def newest(directory=TRAINING):
    """The training to show: a GPU's where there is one. None without files."""
    found = [read(path) for path in sorted(directory.glob("*.csv"))]
    return next((one for one in found if one.backend == "cuda"), found[0] if found else None)
