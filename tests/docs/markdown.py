"""What the tests of the documents read in Markdown: code, prose, headings, links."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\S*)")


def documents():
    """Every Markdown file that git tracks or would track; without git, every one outside build directories."""
    listing = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"], capture_output=True
    )
    if listing.returncode == 0:
        names = [name.decode() for name in listing.stdout.split(b"\0") if name]
        return sorted(path for name in names if (path := ROOT / name).is_file())
    skipped = ("build", ".venv", "exercises")
    return sorted(p for p in ROOT.rglob("*.md") if p.relative_to(ROOT).parts[0] not in skipped)


def lines_of(text):
    """(number, line, code) of every line: code is None in prose, else the fence's language, or 'indented'."""
    fence, language, was_blank, in_list, indented = None, "", True, False, False
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if fence:
            yield number, line, language or "fence"
            if match and match[2].startswith(fence) and not match[3]:
                fence = None
            continue
        if match:
            fence, language, was_blank, indented = match[2], match[3], False, False
            yield number, line, language or "fence"
            continue
        if not line.strip():
            was_blank = True
            yield number, line, None
            continue
        if re.match(r"(\d+\.|[-*])\s", line):
            in_list = True
        elif not line.startswith((" ", "\t")):
            in_list = False
        indented = line.startswith("    ") and (was_blank or indented) and not in_list
        was_blank = False
        yield number, line, "indented" if indented else None


def prose_of(text):
    """The text without code: lines of code become empty, code spans vanish."""
    return "\n".join("" if code else re.sub(r"`[^`]*`", "", line) for _, line, code in lines_of(text))


def slug(heading):
    """The anchor that GitHub gives a heading."""
    heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # the words of a link
    heading = heading.replace("`", "").replace("*", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def anchors_of(text):
    """Everything that a link into the document may name."""
    found, used = set(), {}
    for _, line, code in lines_of(text):
        if code:
            continue
        found.update(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", line))
        if match := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
            name = slug(match[1])
            count = used.get(name, 0)
            used[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
    return found


def links_of(text):
    """(line, target) of every link and picture in prose."""
    for number, line in enumerate(prose_of(text).splitlines(), 1):
        for target in re.findall(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)", line):
            yield number, target
        for target in re.findall(r"<(?:img|source|a)\b[^>]*?\b(?:src|srcset|href)=\"([^\"]+)\"", line):
            yield number, target
        if match := re.match(r"\s*\[[^\]]+\]:\s+(\S+)", line):
            yield number, match[1]
