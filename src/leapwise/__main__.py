"""Run the command line as ``python -m leapwise``."""

from leapwise.cli import main

if __name__ == "__main__":
    main(prog_name="leapwise")
