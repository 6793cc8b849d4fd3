"""Runs pytest again and again, each time in a process of its own that has imported what it needs already.

It reads requests from its standard input, a line of JSON each, and answers with the exit status. Forking spares every
run the import of JAX and its company, which takes longer than most of the tests that kill a mutant.
"""

import json
import os
import resource
import signal
import sys
import warnings

# What the tests import; `modulax` itself is imported after the fork, with its fault.
import beartype
import chex
import equinox
import flax.nnx
import jax
import matplotlib.pyplot
import optax
import orbax.checkpoint
import pytest

IMPORTED = (beartype, chex, equinox, flax.nnx, jax, matplotlib.pyplot, optax, orbax.checkpoint)


def run(arguments: list[str], environment: dict[str, str], sources: str, log: str, limit: int) -> int:
    """Run pytest, with its output in the file `log`, and return its exit status.

    Without an end after `limit` seconds of computation, the status is that of a failure. The time of a clock would not
    do: it also passes while the process waits for a busy machine.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks; it has started no thread yet
        child = os.fork()
    if child == 0:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(file, stream)
        for name in ("XLA_FLAGS", "PYTHONPATH"):
            os.environ.pop(name, None)
        os.environ.update(environment)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
        sys.path.insert(0, sources)
        status = pytest.main(arguments)
        sys.stdout.flush()
        os._exit(int(status))
    _, wait_status = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(wait_status)
    return 1 if status == -signal.SIGXCPU else status


def main() -> None:
    for line in sys.stdin:
        print(run(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
