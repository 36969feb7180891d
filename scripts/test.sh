#!/usr/bin/env bash
# Sets Rondo up, then passes its checks: lint, format, types, tests.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
export PATH="$PWD/.venv/bin:$PATH"
ruff check .
ruff format --check .
pyright
pytest -n 2 -m "not slow" "$@"
