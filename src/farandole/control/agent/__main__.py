"""Serves the launcher that is connected to standard input and output."""

from farandole.control.agent import cannot_run

try:
    from farandole.control.agent.agent import main
except Exception as error:  # Anything may be missing, and an old Python may raise any error.
    cannot_run.exit_with(error)

if __name__ == "__main__":
    main()
