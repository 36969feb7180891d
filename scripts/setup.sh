# Sets up everything that Rondo needs, once: Debian packages, the virtual environment .venv, Python packages.
# Sourced by the other scripts; a second run costs a fraction of a second.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=()
command -v g++ >/dev/null || packages+=(g++)
command -v make >/dev/null || packages+=(make)
command -v iverilog >/dev/null || packages+=(iverilog)
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
if [ ${#packages[@]} -gt 0 ]; then
    echo "Installing Debian packages: ${packages[*]}"
    run=()
    [ "$(id -u)" -eq 0 ] || run=(sudo)
    "${run[@]}" apt-get update -qq
    "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

stamp=".venv/rondo-$(cat requirements.lock pyproject.toml | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
    echo "Installing Python packages into .venv (a few minutes)"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Rondo needs Python 3.11 or newer" >&2; exit 2; }
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
    touch "$stamp"
fi
