"""The commands and their options.

How errors end a command.

Options that several commands have.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from leapwise.cli import output
from leapwise.errors import InputError, LeapwiseError

INTERRUPTED = 130  # what shells expect after Ctrl-C


class Failure(click.ClickException):
    """An error that the library raised on purpose: its sentence on one line, no traceback, exit code 2."""

    exit_code = 2


class OneLineErrors(click.Group):
    """A group of commands that turns the library's errors into `Failure`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except LeapwiseError as error:
            raise Failure(" ".join(str(error).split())) from error
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)


Command = Callable[..., Any]
_FILE = click.Path(path_type=Path)


def evaluating(command: Command) -> Command:
    """Add options of how exact evaluations are made; a run may be resumed with others."""
    return _with(
        command,
        click.option(
            "--retries", default=1, show_default=True, help="How often a failing evaluation is tried again."
        ),
        click.option(
            "--timeout", type=float, help="Seconds that one evaluation may take.  [default: no limit]"
        ),
        click.option("--cores", type=int, help="Evaluate in so many processes."),
        click.option(
            "--version", metavar="TEXT", help="Of the model, kept in the ledger: change it with the model."
        ),
    )


def reporting(command: Command) -> Command:
    """Add options of what is shown and written in the end."""
    return _with(
        command,
        click.option("--output", "file", type=_FILE, metavar="FILE.nc", help="Save draws as netCDF."),
        click.option("--plot", "picture", type=_FILE, metavar="FILE.png", help="Draw a picture of them."),
        click.option("--all", "show_all", is_flag=True, help="Show every parameter, however many."),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the summary as JSON, and nothing else on stdout."
        ),
        click.option("--quiet", is_flag=True, help="No progress, no summary: only warnings and errors."),
    )


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    """Apply options so that the help lists them in this order."""
    return reduce(lambda made, option: option(made), reversed(options), command)


# Samplers and problems are imported where they are used, so that --help and mistyped options answer at once.


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("leapwise"), message="leapwise %(version)s")
def main() -> None:
    """Exact MCMC for expensive posteriors."""


@main.command()
def problems() -> None:
    """List the built-in posteriors."""
    from leapwise.problems import registry

    output.show(output.problem_table(registry.listing()))


@main.command()
@click.argument("what")
@click.option("--draws", default=1000, show_default=True, help="Draws to keep of each chain.")
@click.option(
    "--tune",
    type=int,
    help="What may be spent on warm-up: with auto exact evaluations of all chains together, otherwise steps of each "
    "chain.  [default: about 170 + 10 for each parameter, more where there are only values; 500 steps]",
)
@click.option("--chains", default=4, show_default=True, help="Number of chains.")
@click.option("--seed", "random_seed", type=int, metavar="INTEGER", help="For the same draws again.")
@click.option(
    "--method",
    type=click.Choice(["auto", "hmc", "rmhmc"]),
    default="auto",
    show_default=True,
    help="Learn a surrogate and draw at one exact value each, or take exact gradients all the way.",
)
@click.option(
    "--max-evaluations",
    type=int,
    help="Exact evaluations to spend at most, warm-up and draws together; then --draws is the most that are made.",
)
@click.option("--step-size", type=float, help="Of a leapfrog step of hmc or rmhmc; tuned if left out.")
@click.option("--target-acceptance", type=float, help="What that is tuned for.  [default: 0.8]")
@click.option("--n-steps", type=int, help="Largest number of leapfrog steps; tuned if left out.")
@click.option(
    "--on-failure",
    type=click.Choice(["raise", "reject"]),
    default="raise",
    show_default=True,
    help="Where the model fails: stop, or reject and count it.",
)
@evaluating
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    metavar="RUN.db",
    help="Record every exact evaluation there; the same command goes on where it was stopped.",
)
@click.option(
    "--surrogate-plot",
    "surrogate_picture",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Draw how well the surrogate did.",
)
@reporting
@click.pass_context
def sample(
    context: click.Context,
    /,
    what: str,
    file: Path | None,
    picture: Path | None,
    surrogate_picture: Path | None,
    show_all: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Sample WHAT: a built-in problem, or my_model.py:target.

    In a file of yours, target may be a Target, a ForwardTarget, a Problem, or a function without arguments
    that returns one. Ctrl-C stops the run and keeps what has been drawn.
    """
    if surrogate_picture is not None and options["method"] != "auto":
        raise InputError(
            f"{options['method']} has no surrogate to draw; leave out --surrogate-plot, or --method"
        )
    files = output.Files(file, picture, surrogate_picture)
    files.check()
    with output.stdout_to_stderr(as_json):
        from leapwise.cli.load import load_problem

        problem = load_problem(what)
        run = output.kept(
            problem, files, lambda: draw(problem, progressbar=False if quiet else None, **options)
        )
    hand_over(context, problem, run, files, show_all=show_all, as_json=as_json, quiet=quiet)


@main.command()
@click.argument("ledger", type=click.Path(path_type=Path))
@click.argument("what")
@click.option("--draws", type=int, help="Draws to keep of each chain.  [default: as asked for last]")
@evaluating
@reporting
@click.pass_context
def resume(
    context: click.Context,
    /,
    ledger: Path,
    what: str,
    file: Path | None,
    picture: Path | None,
    show_all: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Go on with the run in LEDGER, of WHAT: a built-in problem, or my_model.py:target.

    Nothing that the ledger holds is evaluated again, but for one position, to see that the model is the same.
    """
    files = output.Files(file, picture)
    files.check()
    with output.stdout_to_stderr(as_json):
        from leapwise.cli.load import load_problem
        from leapwise.run.sample import resume as go_on

        problem = load_problem(what)
        run = output.kept(
            problem,
            files,
            lambda: go_on(ledger, problem.target, progressbar=False if quiet else None, **options),
        )
    hand_over(context, problem, run, files, show_all=show_all, as_json=as_json, quiet=quiet)


def hand_over(context: click.Context, problem: Any, run: Any, files: output.Files, **shown: bool) -> None:
    """Show a run and write its files; the exit code says if it was interrupted."""
    output.report(run, **shown)
    with output.stdout_to_stderr(shown["as_json"]):
        files.keep(problem, run)
    if not run.complete:
        context.exit(INTERRUPTED)


@main.command()
@click.argument("ledger", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def inspect(ledger: Path, as_json: bool) -> None:
    """Show what is in LEDGER, also while a run is writing to it."""
    from leapwise.run.inspect import inspect_ledger

    found = inspect_ledger(ledger)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        output.show(output.inspection_table(found))


def draw(problem: Any, *, method: str, **options: Any) -> Any:
    """Choose the method and sample."""
    from leapwise.run import sample
    from leapwise.warmup import Auto

    names = ("step_size", "n_steps", "target_acceptance")
    given = {name: value for name in names if (value := options.pop(name)) is not None}
    if method != "auto":
        return sample(problem.target, method=kernel_for(problem, method, given), **options)
    if given:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise InputError(f"auto tunes itself and has no {option}; leave it out, or add --method hmc")
    return sample(problem.target, method=Auto(), **options)


def kernel_for(problem: Any, method: str, given: dict[str, Any]) -> Any:
    """Make the kernel that takes exact gradients all the way."""
    from leapwise.kernels import HMC, RMHMC

    if method == "hmc":
        return HMC().replace(**given)
    if problem.metric is None:
        raise InputError(f"{problem.name} has no Riemannian metric, which rmhmc needs; use --method hmc")
    return RMHMC(metric=problem.metric).replace(**given)


@main.command()
@click.argument("what", type=click.Choice(["table1", *(f"fig{n}" for n in range(1, 9)), "agreement", "all"]))
@click.option(
    "--experiment",
    type=click.Choice(["simulated", "bank", "a9a", "elliptic"]),
    help="Only this posterior, where there are several.",
)
@click.option(
    "--method",
    type=click.Choice(["hmc", "rmhmc", "rns-hmc", "rns-rmhmc", "arns-hmc"]),
    help="Only this sampler, and HMC, which it is compared with.",
)
@click.option("--quick/--full", default=True, show_default=True, help="Minutes, or the paper's size (hours).")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out"),
    show_default=True,
    help="Where tables (CSV), pictures (PNG) and finished pieces of work go.",
)
@click.option("--fresh", is_flag=True, help="Compute everything again, whatever is there.")
@click.option("--quiet", is_flag=True, help="No progress.")
def reproduce(
    what: str, experiment: str | None, method: str | None, quick: bool, folder: Path, fresh: bool, quiet: bool
) -> None:
    """Reproduce a table or figure of the paper, or all of them: the numbers and the picture.

    What is called agreement is not in the paper: it checks that the surrogate methods draw from the same posterior
    as exact HMC.

    Ctrl-C stops it; the same command goes on where it was. The paper's data are downloaded when first used, unless
    the folder LEAPWISE_DATA has them.
    """
    from leapwise.cli.reproduce import reproduce_all
    from leapwise.paper import registry

    names = registry.NAMES if what == "all" else (what,)
    only = {"experiment": experiment, "method": method}
    reproduce_all(names, {k: v for k, v in only.items() if v is not None}, quick, folder, fresh, quiet)
