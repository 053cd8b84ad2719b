"""Run the command line as ``python -m understudy``."""

from understudy.cli import main

if __name__ == "__main__":
    main(prog_name="understudy")
