#!/usr/bin/env python3
"""Follows docs/add-a-backend.md to the letter: writes the files it shows, runs the commands it shows.

    follow_add_a_backend.py plugin ROOT PROGRAM   part 1, with PROGRAM as build/warpweave
    follow_add_a_backend.py in-tree ROOT          part 2, in a copy of the tree: builds the whole program

A code block after a line that ends in "`path`:" is that file; after "`path`, append:" its end. A block
marked sh is run. Exits 1 at the first command that fails.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HEADINGS = {"plugin": "## Part 1", "in-tree": "## Part 2"}


def section(text, heading):
    start = text.index(heading)
    end = text.find("\n## ", start + 1)
    return text[start : end if end >= 0 else len(text)]


def steps(text):
    """("run", None, commands), ("write", path, code) and ("append", path, code) in their order."""
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.S | re.M):
        language, code = match.groups()
        before = text[: match.start()].rstrip().rsplit("\n", 1)[-1]
        if language == "sh":
            yield "run", None, code
            continue
        named = re.search(r"`([^`]+)`(, append)?:$", before)
        if not named:
            sys.exit(f"the code block after \"{before}\" does not say which file it is")
        yield "append" if named.group(2) else "write", named.group(1), code


def follow(text, folder):
    # One shell for all commands: what one exports the next sees.
    script = ["set -e"]
    for kind, path, code in steps(text):
        if kind == "run":
            script.append(code)
            continue
        operator = ">" if kind == "write" else ">>"
        script.append(f"mkdir -p '{os.path.dirname(path)}'\ncat {operator} '{path}' <<'END_OF_BLOCK'\n{code}END_OF_BLOCK")
    done = subprocess.run(["sh", "-c", "\n".join(script)], cwd=folder)
    if done.returncode != 0:
        sys.exit(f"following the document failed with exit code {done.returncode}")


def main():
    part, root = sys.argv[1], os.path.abspath(sys.argv[2])
    with open(os.path.join(root, "docs/add-a-backend.md"), encoding="utf-8") as f:
        text = section(f.read(), HEADINGS[part])
    folder = tempfile.mkdtemp(prefix="add-a-backend-")
    try:
        if part == "plugin":
            os.mkdir(os.path.join(folder, "build"))
            os.symlink(os.path.abspath(sys.argv[3]), os.path.join(folder, "build/warpweave"))
            os.symlink(os.path.join(root, "include"), os.path.join(folder, "include"))
            os.symlink(os.path.join(root, "models"), os.path.join(folder, "models"))
        else:
            unwanted = shutil.ignore_patterns("build*", ".git", ".venv*", "weights")
            shutil.copytree(root, folder, dirs_exist_ok=True, ignore=unwanted)
        follow(text, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("docs/add-a-backend.md: every step of", HEADINGS[part].removeprefix("## ").lower(), "works")


if __name__ == "__main__":
    main()
