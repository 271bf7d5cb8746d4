"""Runs the command `sluice` of this installation."""

import os
import sys
from pathlib import Path

# The nearest prefix above this package that has the programs: of a virtual environment, ~/.local, or `pip --target`.
for prefix in Path(os.path.abspath(__file__)).parents:
    if (prefix / "lib/sluice/installed-by-pip").is_file():
        program = str(prefix / "bin/sluice")
        os.execv(program, [program, *sys.argv[1:]])
sys.exit("sluice: the programs of the wheel are missing; install it with: pip install --force-reinstall sluice-*.whl")
