"""The kernels in which the pages run: forks of one process that has imported JAX and modulax, so that no page imports.

`start` runs this file as that process, and tells Jupyter to run it for each page too, as the command of the kernel: it
asks for a fork, and ends when the fork does.
"""

import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that is forked, which ends with this one. `folder` holds what Jupyter reads."""
    address = os.path.join(tempfile.mkdtemp(), "kernels")
    kernel = folder / "kernels" / "python3"
    kernel.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-S", __file__, address, "-f", "{connection_file}"]
    specification = {"argv": command, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(specification), encoding="utf-8")
    os.environ["JUPYTER_PATH"] = str(folder)
    # A kernel that knows of a parent ends when it has lost it.
    environment = os.environ | {"JPY_PARENT_PID": str(os.getpid())}
    return subprocess.Popen([sys.executable, __file__, address], stdin=subprocess.PIPE, env=environment)


def serve(address: str) -> None:
    """Make a fork for whoever connects, until the standard input ends."""
    import equinox  # noqa: F401
    import ipykernel.kernelapp  # noqa: F401
    import optax  # noqa: F401
    from flax import nnx  # noqa: F401

    import modulax.nnx
    import modulax.sweeps  # noqa: F401

    gc.collect()
    gc.freeze()  # no fork collects what it shares with the others
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection, _ = server.accept()
            request, outputs, *_ = socket.recv_fds(connection, 1 << 20, 2)
            if os.fork() == 0:
                server.close()
                run(outputs, *json.loads(request))  # the fork's end of the connection is closed when it ends
            connection.close()
    shutil.rmtree(os.path.dirname(address))


def run(outputs: list[int], arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be the kernel."""
    from ipykernel.kernelapp import IPKernelApp

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)
    warnings.filterwarnings("error", module="__main__|modulax")  # no page shows a warning by accident
    sys.path[0] = ""
    try:
        IPKernelApp.launch_instance(argv=arguments)
    finally:
        os._exit(0)


def ask(address: str, *arguments: str) -> None:
    """Ask for a fork, and wait until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as connection:
        while connection.connect_ex(address):  # it still imports
            time.sleep(0.05)
        request = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(connection, [request], [1, 2])
        connection.recv(1)


if __name__ == "__main__":
    (serve if len(sys.argv) == 2 else ask)(*sys.argv[1:])
