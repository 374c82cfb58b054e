"""Command line of the image. Each part brings its own sub-commands; this module finds the part and runs it.

A part is a module with `register(commands)`, which adds parsers whose default `handler` takes the parsed arguments and
returns the exit code. Only the named part is imported, so `weights fetch` does not wait for torch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from moerl_runtime.faults import RuntimeFault

PARTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "agent": ("moerl_runtime.agent.cli", "rollout agent: leases tasks, drives the engine, drains on a notice"),
        "bench": ("moerl_runtime.bench.cli", "NCCL and DeepEP between nodes of a pool"),
        "buffer": ("moerl_runtime.workers.buffer", "finished samples in memory, for the trainer"),
        "checkpoint": ("moerl_runtime.checkpoint.cli", "restore, upload, list and prune checkpoints"),
        "efa-exporter": ("moerl_runtime.efa_exporter", "EFA counters of a node for Prometheus"),
        "environment": ("moerl_runtime.workers.environment", "steps and rewards of episodes"),
        "image": ("moerl_runtime.image.cli", "static checks at the end of an image build"),
        "load-gdrdrv": ("moerl_runtime.load_gdrdrv", "builds and loads the gdrdrv kernel module on a node"),
        "preflight": ("moerl_runtime.preflight.cli", "proves a node and this image before a job may use them"),
        "smoke": ("moerl_runtime.smoke.cli", "a tiny RL job through the real queue and buckets"),
        "trainer": ("moerl_runtime.trainer.cli", "starts the framework's train.py under the run's lease"),
        "weights": ("moerl_runtime.weights.cli", "prepare, fetch and list model weights"),
    }
)
WRONG_INPUT, INTERRUPTED = 2, 130
NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "SSOError",
)
"""botocore's, for callers who have none, or none any more."""
REFUSALS = ("AccessDenied", "AccessDeniedException", "ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId")
"""Error codes of AWS for callers who may not."""

EPILOG = """exit codes: 0 done, 1 it failed, 2 wrong input, 130 Ctrl-C; a part's own --help names any other.

examples:
  python -m moerl_runtime preflight node --pool trainer
  python -m moerl_runtime checkpoint list
"""


class Parser(argparse.ArgumentParser):
    """Shows texts with the lines that they are written in. Parsers of commands are of the same class."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **named})


def main(arguments: Sequence[str] | None = None, *, variables: Mapping[str, str] | None = None) -> int:
    """Runs one command and returns its exit code. `variables` stand for the process's environment."""
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments), variables)
    except RuntimeFault as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        why = without_credentials(error) or refused(error)
        if why is None:
            raise
        print(why, file=sys.stderr)
        return why.exit_code


def _run(written: list[str], variables: Mapping[str, str] | None) -> int:
    parser = Parser(
        prog="python -m moerl_runtime", description="The program inside the images of moerl.", epilog=EPILOG
    )
    commands = parser.add_subparsers(metavar="PART", required=True)
    chosen = next((word for word in written if word in PARTS), None)
    for name, (module, text) in PARTS.items():
        if name == chosen:
            importlib.import_module(module).register(commands)
        else:
            commands.add_parser(name, help=text)
    parsed = parser.parse_args(written)
    parsed.variables = dict(os.environ if variables is None else variables)
    return int(parsed.handler(parsed))


def without_credentials(error: Exception) -> RuntimeFault | None:
    """The fault of a caller who has no AWS credentials; None for any other error."""
    exceptions = sys.modules.get("botocore.exceptions")  # parts that never ask AWS do not wait for it
    if exceptions is None or not isinstance(error, tuple(getattr(exceptions, name) for name in NO_CREDENTIALS)):
        return None
    return RuntimeFault(
        "AWS credentials",
        None,
        f"cannot be had: {str(error).rstrip('.')}",
        "In a pod: its service account lacks a Pod Identity association (`aws eks list-pod-identity-associations`), or got it"
        " after the pod had started: delete the pod then. `preflight node` says which. Elsewhere: sign in first.",
    )


def refused(error: Exception) -> RuntimeFault | None:
    """The fault of a caller whom AWS refuses; None for any other error."""
    exceptions = sys.modules.get("botocore.exceptions")
    if exceptions is None or not isinstance(error, exceptions.ClientError):
        return None
    code = error.response.get("Error", {}).get("Code", "")
    if code not in REFUSALS:
        return None
    return RuntimeFault(
        "AWS",
        error.operation_name,
        f"was refused: {str(error).rstrip('.')}",
        "Look at the policy of the role of this pod's service account, or sign in anew.",
    )
