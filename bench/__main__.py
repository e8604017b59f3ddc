"""`python -m bench`: every module of this package that has a `main`, one after the other, each in a process of its own."""

import subprocess
import sys
from importlib.resources import files

names = sorted(file.name.removesuffix(".py") for file in files("bench").iterdir() if file.name.endswith(".py"))
chosen = sys.argv[1:] or [name for name in names if not name.startswith("_") and name != "soak"]
failed = [name for name in chosen if subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode]
sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
