"""Where ``rondo`` starts: imports nothing slow before Ctrl-C is minded."""

import signal
import sys
import warnings


def main() -> None:
    """Run the command line; Ctrl-C ends with 130 at any moment."""
    # Hardware half elaborated when the user stops is no mistake.
    warnings.filterwarnings("ignore", message=".*created but never used.*")
    try:
        from sim.cli.main import main as run

        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("rondo: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
