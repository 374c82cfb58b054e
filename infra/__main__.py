"""`python -m infra`: `moerl`, which Ctrl-C ends without a traceback even while it imports."""

from __future__ import annotations

from infra.interrupt import interruptible


def main() -> None:
    interruptible(_moerl)


def _moerl() -> None:
    # boto3, typer and pydantic take a second.
    from infra.cli import app

    app()


if __name__ == "__main__":
    main()
