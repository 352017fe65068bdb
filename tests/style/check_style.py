#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_style.py ROOT: docs/contributing.md's rules of style, as far as a program can see them.

Long functions have paragraphs, functions and files have names of their own, folders stay small,
comments and strings are not broken in odd places, pages have short sentences, and comments avoid
idioms that English readers must read twice."""
import collections
import pathlib
import re
import sys

LONG_FUNCTION = 20      # lines of its body, from which on it has a blank line
UNBROKEN_SHARE = 0.05   # of long functions that may do without: tables and switches
# Functions of several files, at most ten. Those of math/kernels do not count: their sets share bodies.
SHARED_FUNCTIONS = {"check_keys", "check_object", "check_ranges", "main",
                    # of math/blas.c or math/plain.c, of which a build has one
                    "attn_blas_text", "blas_init", "blas_multiply_transposed"}
# Files of several folders of one room. Each protocol of wire has the same phases.
SHARED_FILES = {"math": {"contribute", "reduce"}, "weights": {"latent"},
                "wire": {"decode", "describe", "encode", "options"}}
FOLDER_FILES = 25
SENTENCE_MEAN, SENTENCE_MAX = 18, 40  # words
LINE_COLUMNS = 90
IDIOMS = {
    r"(?<!here )(?<!ere )\b(?:is|are) no (?!longer\b|more\b|fewer\b|larger\b|smaller\b)[a-z]+": "is not a",
    r"\b(?:give|gives|given|giving|gave) (?:\w+ )?back\b": "release",
    r"\bout of being\b": "out of scope",
    r"\bstand(?:s|ing)? (?:there|in the|at the|after each other|far apart|behind|before it)\b": "is stored, is",
    r"\bcome to pass\b": "happen",
    r"\b(?:whoever|somebody)\b": "who, a caller, a client",
    r"\brubbish\b": "unspecified",
}


def functions(text):
    """(name, line, body lines) of each function; definitions begin at column 0, as does their end."""
    lines = text.split("\n")
    opening = None
    for number, line in enumerate(lines):
        if opening is None and re.match(r"[A-Za-z_].*[(,]", line) and not line.endswith(";"):
            opening = number
        elif opening is not None and not line.startswith((" ", "\t")) and not line.startswith("}"):
            opening = number if re.match(r"[A-Za-z_].*[(,]", line) and not line.endswith(";") else None
        if opening is not None and line.endswith(") {") and not line.startswith("    if"):
            signature = " ".join(lines[opening:number + 1])
            name = re.search(r"(\w+)\s*\((?!\()", re.sub(r"__attribute__\(\(.*?\)\)", "", signature))
            end = next((i for i in range(number, len(lines)) if lines[i] == "}"), number)
            if name and end > number:
                yield name.group(1), number + 1, lines[number + 1:end]
            opening = None


def check_functions(root):
    names, unbroken, long_count, count = collections.defaultdict(list), [], 0, 0
    for path in sorted(path for suffix in ("c", "h", "inc") for path in (root / "src").rglob(f"*.{suffix}")):
        for name, line, body in functions(path.read_text()):
            count += 1
            if "kernels" not in path.parts:
                names[name].append(f"{path}:{line}")
            if len(body) >= LONG_FUNCTION:
                long_count += 1
                if all(body_line.strip() for body_line in body):
                    unbroken.append(f"{path}:{line}: {name}() has no blank line in {len(body)} lines")
    if len(unbroken) > UNBROKEN_SHARE * long_count:
        yield from unbroken
    for name, places in sorted(names.items()):
        if len(places) > 1 and name not in SHARED_FUNCTIONS:
            yield f"{' '.join(places)}: {name}() is a name of several functions; give each its own"
    if count < 100:
        yield f"{root}/src: only {count} functions were found"


def check_files(root):
    files = collections.defaultdict(list)
    for path in sorted((root / "src").rglob("*.c")):
        files[path.relative_to(root / "src").parts[0], path.stem].append(str(path))
    for (room, stem), places in files.items():
        if len(places) > 1 and stem not in SHARED_FILES.get(room, ()):
            yield f"{' '.join(places)}: files of one room with one name; give each its own"


def check_lines(path):
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if re.fullmatch(r"\s*\*/", line) and number > 1 and "/*" in lines[number - 2]:
            yield f"{path}:{number}: a comment of one line ends on the next"
        if re.search(r'%[-+ #0-9.*lzhj]*"$', line):
            yield f"{path}:{number}: a string is cut inside a conversion"
        if re.fullmatch(r"#define \w+ +\\", line) and "/*" in lines[number]:
            yield f"{path}:{number}: put the comment above the macro"
        if len(line) > LINE_COLUMNS and "clang-format" not in line and path.suffix in (".c", ".h", ".inc"):
            yield f"{path}:{number}: {len(line)} columns, over {LINE_COLUMNS}"


def prose_of(path):
    """What an English reader reads: comments and strings of code, pages without their code."""
    text = path.read_text()
    if path.suffix == ".md":
        return re.sub(r"```.*?```|`[^`]*`", " ", text, flags=re.S)
    return "\n".join(re.findall(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', text, re.S))


def check_idioms(path):
    prose = re.sub(r"\n \* ?|\s+", " ", prose_of(path))
    for idiom, better in IDIOMS.items():
        for found in re.finditer(idiom, prose, re.I):
            yield f"{path}: '{found.group(0)}': say '{better}'"


def sentences(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    prose = "\n".join(line for line in text.split("\n") if not re.match(r"\s*(\||#|!\[|- \[)", line))
    for sentence in re.split(r"(?<=[.!?:])\s+|\n\n", prose):
        words = len(re.findall(r"[A-Za-z']+", sentence))
        if words > 3:
            yield words, " ".join(sentence.split())


def check_page(path):
    found = [*sentences(path)]
    mean = sum(words for words, _ in found) / max(len(found), 1)
    if mean > SENTENCE_MEAN:
        yield f"{path}: {mean:.1f} words a sentence, over {SENTENCE_MEAN}"
    for words, sentence in found:
        if words > SENTENCE_MAX:
            yield f"{path}: a sentence of {words} words: {sentence[:60]}"


def check_folders(root):
    folders = collections.Counter(path.parent for path in (root / "src").rglob("*")
                                  if path.suffix in (".c", ".h", ".inc"))
    for folder, files in folders.items():
        if files > FOLDER_FILES:
            yield f"{folder}: {files} files, over {FOLDER_FILES}"


def main():
    root = pathlib.Path(sys.argv[1])
    code = sorted(path for folder in ("src", "include", "tests", "docs")
                  for path in (root / folder).rglob("*") if path.suffix in (".c", ".h", ".inc", ".cc", ".cpp"))
    pages = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]
    problems = [*check_functions(root), *check_files(root), *check_folders(root)]
    for path in code:
        problems += check_lines(path)
    for path in code + pages:
        problems += check_idioms(path)
    for path in pages:
        problems += check_page(path)
    print("\n".join(problems) or f"{len(code)} C files and {len(pages)} pages are in order")
    return 1 if problems else 0


sys.exit(main())
