"""Fills the generated blocks of README.md and steps/*/README.md from the committed results.

    readme.py            writes them
    readme.py --check    says which are out of date, and exits 1 if any is

A block stands between <!-- generated:NAME --> and <!-- /generated -->. NAME is `ladder` in README.md and `measure-NN` in
the README.md of step NN.
"""

import argparse
import pathlib
import re
import sys

import ladder
import results

BLOCK = re.compile(r"(<!-- generated:([\w-]+) -->\n)(.*?)(<!-- /generated -->)", re.DOTALL)
NOTHING = "No results are committed yet.\n"


def ladder_block(all_rows):
    parts = [f"{ladder.measured_on(rows)}\n\n{ladder.markdown(*linked(*ladder.ladder(rows)))}\n" for rows in all_rows]
    return "\n".join(parts) or NOTHING


def linked(header, lines):
    """Step numbers as links to their directories."""
    directories = {path.name[:2]: path.name for path in (results.ROOT / "steps").glob("[0-9][0-9]_*")}
    column = header.index("step")

    def link(line):
        name = directories.get(line[column])
        text = f"[{line[column]}](steps/{name})" if name else line[column]
        return [*line[:column], text, *line[column + 1 :]]

    return header, [link(line) for line in lines]


def measure_block(all_rows, step):
    parts = []
    for rows in all_rows:
        mine = [row for row in rows if row["step"] == step]
        tables = ladder.step_tables(mine, step) if mine else []
        if not tables:
            continue
        parts.append(ladder.measured_on(mine) + "\n")
        parts += [f"{title}:\n\n{ladder.markdown(header, lines)}\n" for title, header, lines in tables]
    return "\n".join(parts) or NOTHING


def filled(text, path, all_rows):
    """The text with its blocks made anew."""

    def replace(match):
        begin, name, _, end = match.groups()
        if name == "ladder":
            body = ladder_block(all_rows)
        elif re.fullmatch(r"measure-\d\d", name):
            body = measure_block(all_rows, name[-2:])
        else:
            raise results.ResultsError(f"{path} has a generated block {name!r}; known are ladder and measure-NN")
        return f"{begin}{body}{end}"

    return BLOCK.sub(replace, text)


def readmes():
    return [results.ROOT / "README.md", *sorted((results.ROOT / "steps").glob("*/README.md"))]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a block is out of date")
    options = parser.parse_args(arguments)
    all_rows = [results.read(path) for path in results.committed()]
    stale = []
    for path in readmes():
        text = path.read_text(encoding="utf-8")
        new = filled(text, path, all_rows)
        if new != text:
            stale.append(path)
            if not options.check:
                path.write_text(new, encoding="utf-8")
    for path in stale:
        verb = "is out of date (plots/readme.py writes it)" if options.check else "written"
        print(f"{pathlib.Path(path).relative_to(results.ROOT)} {verb}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except results.ResultsError as error:
        sys.exit(f"error: {error}")
