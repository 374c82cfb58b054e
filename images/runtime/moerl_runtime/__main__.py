"""`python -m moerl_runtime`."""

from __future__ import annotations

import sys

from moerl_runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
