"""The commands, their options, and how errors end them.

Samplers, problems and the paper's experiments are imported inside the commands, so that ``--help`` and mistyped options
are quick.
"""

from __future__ import annotations

import inspect as signatures
import json
import time
from collections.abc import Callable, Sequence
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from leapwise.cli import output
from leapwise.errors import InputError, LeapwiseError

#: Exit code that shells expect after Ctrl-C.
INTERRUPTED = 130


class CommandError(click.ClickException):
    """An error that the library raised on purpose: its sentence on one line, no traceback, exit code 2."""

    exit_code = 2


class OneLineErrors(click.Group):
    """A group of commands that turns the library's errors into `CommandError`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except LeapwiseError as error:
            raise CommandError(" ".join(str(error).split())) from error
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)


Command = Callable[..., Any]
_FILE = click.Path(path_type=Path)


def evaluating(command: Command) -> Command:
    """Add options for exact evaluations, which may change when a run is resumed."""
    return _with(
        command,
        click.option(
            "--retries", default=1, show_default=True, help="How often a failed evaluation is retried."
        ),
        click.option(
            "--timeout", type=float, help="Seconds that one evaluation may take.  [default: no limit]"
        ),
        click.option("--cores", type=int, help="Evaluate in this many processes."),
        click.option("--version", metavar="TEXT", help="Version of the model, stored in the ledger."),
    )


def reporting(command: Command) -> Command:
    """Add options for what is shown and written at the end."""
    return _with(
        command,
        click.option("--output", "file", type=_FILE, metavar="FILE.nc", help="Save draws as netCDF."),
        click.option("--plot", "plot", type=_FILE, metavar="FILE.png", help="Plot the draws."),
        click.option("--all", "show_all", is_flag=True, help="Show every parameter."),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the summary as JSON, and nothing else on stdout."
        ),
        click.option("--quiet", is_flag=True, help="No progress, no summary: only warnings and errors."),
    )


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    """Apply options so that the help lists them in this order."""
    return reduce(lambda made, option: option(made), reversed(options), command)


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
@click.option("--draws", default=1000, show_default=True, help="Draws to keep from each chain.")
@click.option(
    "--tune",
    type=int,
    help="Limit of warm-up: with auto exact evaluations of all chains together, otherwise steps of each "
    "chain.  [default: about 180 + 10 for each parameter, more with values alone; 500 steps]",
)
@click.option("--chains", default=4, show_default=True, help="Number of chains.")
@click.option("--seed", "random_seed", type=int, metavar="INTEGER", help="Seed of the random numbers.")
@click.option(
    "--method",
    type=click.Choice(["auto", "hmc", "rmhmc"]),
    default="auto",
    show_default=True,
    help="Train a surrogate and draw at one exact value each (auto), or use exact gradients only.",
)
@click.option(
    "--max-evaluations",
    type=int,
    help="Limit of exact evaluations, warm-up and draws together; --draws is then the most that are made.",
)
@click.option(
    "--precision",
    type=float,
    help="Stop when standard errors of means and sds are at most so many sds: 0.03 for about 1000 independent draws.",
)
@click.option("--step-size", type=float, help="Step size of hmc or rmhmc; tuned if left out.")
@click.option(
    "--target-acceptance", type=float, help="Acceptance that the step size is tuned for.  [default: 0.8]"
)
@click.option("--n-steps", type=int, help="Largest number of leapfrog steps; tuned if left out.")
@click.option(
    "--on-failure",
    type=click.Choice(["raise", "reject"]),
    default="raise",
    show_default=True,
    help="Where the model fails: stop with an error, or reject the point.",
)
@evaluating
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    metavar="RUN.db",
    help="Record every exact evaluation; the same command continues where it was stopped.",
)
@click.option(
    "--surrogate-plot",
    "surrogate_plot",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Plot how good the surrogate was.",
)
@reporting
@click.pass_context
def sample(
    context: click.Context,
    /,
    what: str,
    file: Path | None,
    plot: Path | None,
    surrogate_plot: Path | None,
    show_all: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Sample WHAT: a built-in problem, or my_model.py:target.

    In your file, target is a Target, a ForwardTarget, a Problem, or a function without arguments that returns one.
    Ctrl-C stops the run and keeps the draws so far.
    """
    if surrogate_plot is not None and options["method"] != "auto":
        raise InputError(
            f"{options['method']} has no surrogate to plot; leave out --surrogate-plot, or --method"
        )
    files = output.Files(file, plot, surrogate_plot)
    files.check()
    with output.stdout_to_stderr(as_json):
        from leapwise.cli.load import load_problem

        problem = load_problem(what)
        run = output.saving_on_failure(
            problem, files, lambda: draw(problem, progressbar=False if quiet else None, **options)
        )
    finish_run(context, problem, run, files, show_all=show_all, as_json=as_json, quiet=quiet)


@main.command()
@click.argument("ledger", type=click.Path(path_type=Path))
@click.argument("what")
@click.option("--draws", type=int, help="Draws to keep of each chain.  [default: as in the last call]")
@click.option(
    "--precision", type=float, help="As for sample.  [default: as in the last call, without --draws]"
)
@evaluating
@reporting
@click.pass_context
def resume(
    context: click.Context,
    /,
    ledger: Path,
    what: str,
    file: Path | None,
    plot: Path | None,
    show_all: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Continue the run in LEDGER of WHAT: a built-in problem, or my_model.py:target.

    Nothing in the ledger is evaluated again, except one position, to check that the model is the same.
    """
    files = output.Files(file, plot)
    files.check()
    with output.stdout_to_stderr(as_json):
        from leapwise.cli.load import load_problem
        from leapwise.run import resume as resume_run

        problem = load_problem(what)
        run = output.saving_on_failure(
            problem,
            files,
            lambda: resume_run(ledger, problem.target, progressbar=False if quiet else None, **options),
        )
    finish_run(context, problem, run, files, show_all=show_all, as_json=as_json, quiet=quiet)


def finish_run(context: click.Context, problem: Any, run: Any, files: output.Files, **shown: bool) -> None:
    """Show a run and write its files; the exit code says whether it was interrupted."""
    output.report(run, **shown)
    with output.stdout_to_stderr(shown["as_json"]):
        files.write(problem, run)
    if not run.complete:
        context.exit(INTERRUPTED)


@main.command()
@click.argument("ledger", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def inspect(ledger: Path, as_json: bool) -> None:
    """Show what LEDGER holds, also while a run is writing to it."""
    from leapwise.run.ledgers import inspect_ledger

    found = inspect_ledger(ledger)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        output.show(output.inspection_table(found))


def draw(problem: Any, *, method: str, **options: Any) -> Any:
    """Sample with the method that was chosen."""
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
    """Return a kernel that uses exact gradients only."""
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
@click.option(
    "--quick/--full",
    default=True,
    show_default=True,
    help="A small version (minutes), or the paper's size (hours).",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out"),
    show_default=True,
    help="Folder for tables (CSV), plots (PNG) and finished parts of the work.",
)
@click.option("--fresh", is_flag=True, help="Compute everything again, also parts that are finished.")
@click.option("--quiet", is_flag=True, help="No progress.")
def reproduce(
    what: str, experiment: str | None, method: str | None, quick: bool, folder: Path, fresh: bool, quiet: bool
) -> None:
    """Reproduce a table or figure of the paper, or all of them: the numbers and the plot.

    agreement is not in the paper: it checks that the surrogate methods draw from the same posterior as exact HMC.

    Ctrl-C stops it; the same command continues from there. The paper's data are downloaded when first used, unless
    the folder LEAPWISE_DATA has them.
    """
    from leapwise.paper import reproductions

    names = reproductions.NAMES if what == "all" else (what,)
    only = {"experiment": experiment, "method": method}
    reproduce_all(names, {k: v for k, v in only.items() if v is not None}, quick, folder, fresh, quiet)


def reproduce_all(
    names: Sequence[str], only: dict[str, str], quick: bool, folder: Path, fresh: bool, quiet: bool
) -> None:
    """Reproduce tables and figures one after the other.

    `only` (an experiment, a method) is passed to those that have such an argument. It is an error if the only one that
    was asked for does not have it.
    """
    from leapwise.paper import reproductions
    from leapwise.paper.cells import Cells
    from leapwise.results.datatree import require_writable

    makers = {name: reproductions.get(name).load() for name in names}
    arguments = {name: set(signatures.signature(maker).parameters) for name, maker in makers.items()}
    for name in names:
        require_writable(folder / f"{name}.csv")
        if name != "table1":  # the only one without a plot
            output.Files(plot=folder / f"{name}.png").check()
        unknown = [f"--{option}" for option in only if option not in arguments[name]]
        if unknown and len(names) == 1:
            raise InputError(f"{name} has no {' and no '.join(unknown)}; leave it out, or reproduce table1")
    cells = Cells(folder, fresh, None if quiet else _clocked())
    try:
        for name, maker in makers.items():
            chosen = {option: value for option, value in only.items() if option in arguments[name]}
            cells.expect(0)  # forgets the number of the last one: not every one knows its own
            try:
                found = maker(quick=quick, cells=cells, **chosen)
            except InputError as error:  # for example a sampler that this experiment does not have
                if len(names) == 1:
                    raise
                click.echo(f"Left out {name}: {error}", err=True)
                continue
            output.show_and_save(name, found, folder)
    except KeyboardInterrupt:
        click.echo(
            f"Finished parts are in {folder / 'cells'}; the same command continues from there.", err=True
        )
        raise


def _clocked() -> Callable[[str], None]:
    """Return a function that writes a line to stderr, with minutes and seconds since now."""
    started = time.monotonic()

    def write(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        click.echo(f"{minutes:3d}:{seconds:02d} {text}", err=True)

    return write
