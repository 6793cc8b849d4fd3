"""Run sessions of nox with nothing but a Python: `python dev.py demo`, `python dev.py tests -- -k adam`."""

import os
import subprocess
import sys
from pathlib import Path

# Python 3.13 or 3.12 if the machine has one, else the one that runs this. `PYTHON=python3.11` asks for another.
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
NEW = [path for version in ("3.13", "3.12") for path in (f"python{version}", *PYENV.glob(f"{version}.*/bin/python"))]
PROBE = "import ensurepip, sys; assert sys.version_info >= (3, 11); print(sys.version.split()[0], sys.executable)"
for python in [os.environ["PYTHON"]] if "PYTHON" in os.environ else [*NEW, sys.executable]:
    status, found = subprocess.getstatusoutput(f'"{python}" -c "{PROBE}"')
    if status == 0:  # it starts, which not every shim of pyenv does, and has what an environment needs
        break
else:
    sys.exit("modulax needs Python 3.11 or newer with ensurepip: on Debian and Ubuntu, `apt install python3-venv`")
print("Python", found, flush=True)
home = Path(__file__).resolve().parent / ".nox" / f"dev-{found.split()[0]}"
nox = home / ("Scripts/nox.exe" if os.name == "nt" else "bin/nox")
if not nox.exists():
    subprocess.check_call([python, "-m", "venv", "--clear", home])
    subprocess.check_call([nox.with_name("python"), "-m", "pip", "install", "--quiet", "nox[uv]"])
sessions = ["-s", *sys.argv[1:]] if sys.argv[1:] else ["-l"]
sys.exit(subprocess.call([nox, "-f", home.parents[1] / "noxfile.py", *sessions]))
