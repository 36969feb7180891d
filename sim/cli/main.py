"""Entry point of ``rondo``."""

import signal
import sys

import click

from sim.cli.common import Cancelled
from sim.cli.compare import compare
from sim.cli.compile import compile_command
from sim.cli.disasm import disasm
from sim.cli.plan import plan
from sim.cli.run import run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rondo-npu", prog_name="rondo")
def rondo() -> None:
    """Rondo: an open neural processing unit, measured to the cycle."""


for _command in (compare, run, plan, compile_command, disasm):
    rondo.add_command(_command)


def main() -> None:
    """Run the command line; Ctrl-C ends with 130."""
    try:
        rondo.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        click.echo(f"rondo: {error.format_message()}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt, Cancelled):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        click.echo("rondo: interrupted", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
