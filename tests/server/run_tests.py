#!/usr/bin/env python3
"""Runs the client tests of this folder against a built program; exits 77 where packages lack."""

import argparse
import importlib.util
import os
import pathlib
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="build/warpweave")
    args, pytest_args = parser.parse_known_args()
    missing = [name for name in ("pytest", "openai") if importlib.util.find_spec(name) is None]
    if missing:
        print("skipped: this Python has no", " and no ".join(missing))
        return 77
    import pytest

    os.environ["WARPWEAVE_PROGRAM"] = args.program
    folder = str(pathlib.Path(__file__).parent)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", folder, *pytest_args]))


if __name__ == "__main__":
    sys.exit(main())
