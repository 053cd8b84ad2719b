"""Every constant of the adaptation, grouped by stage, with the reason for its value.

`DEFAULT` is what `leapwise.Auto()` uses. Other settings are made with `dataclasses.replace` and reach a run by
``Auto(settings=...)``; `EvaluationRecord.settings` carries them to every stage. `StageSwitches` turns whole stages off:
`benchmarks/ablation.py` does that to measure what each stage is worth.

Most values were chosen by hand, not optimised. The mark *Guess* means: chosen once, and works on the built-in problems
and on the posteriors of ``benchmarks/posteriordb``, but other values were not compared and may be better. *Derived*
means that the value follows from a formula. A comment without a mark gives a reason, but the value is a guess too.

Lengths are in units of the frame (see `leapwise.adaptation`) unless a comment names another unit. The *height* of a
position is its potential minus the lowest one known. D is the discrepancy, exact minus predicted potential.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from scipy.special import chdtri

from leapwise.surrogates.training import typical_height


@dataclass(frozen=True)
class StageSwitches:
    """Which optional stages run. A stage that is off is skipped; draws stay exact, but mass may be missed."""

    tempered: bool = True  # explore with tempered chains beside the cold ones
    uncertain_points: bool = True  # evaluate where the Gaussian process is uncertain and may be too high
    restart: bool = True  # begin again where the potential falls far below what was found first
    narrow_frame: bool = True  # narrow the frame when no chain moves
    search_outputs: bool = True  # search the prior for other modes (targets whose outputs are emulated)
    search_density: bool = True  # search around the known mode for others (log-densities with a gradient)
    restore_modes: bool = True  # put chains back into modes that none of them visits any more
    beyond: bool = True  # evaluate beyond the outermost draws of the surrogate
    ridges: bool = True  # continue curved ridges there, beside straight steps
    tails: bool = True  # follow the tails of single parameters, before learning ends and at its end
    patience: bool = True  # learn on while the surrogate is poor and gets better
    moves: bool = True  # test moves of the final kernel, and learn from them (values only)
    jumps: bool = True  # jump between separate modes
    components: bool = True  # jump between the components of a bent mode
    hidden_units: bool = True  # train a quadratic with hidden units beside the plain quadratic
    gaussian_process: bool = True  # train a Gaussian process beside them


@dataclass(frozen=True)
class HeightSettings:
    r"""How far above the lowest potential a position still counts, as functions of the dimension d.

    For a normal posterior twice the height of a draw is chi-squared with d degrees of freedom. So a height is half a
    quantile of it, and is said by the share of draws above it.
    """

    #: Share of the draws of a normal posterior above the height of `draws`, and above that of `mass`. Guess.
    above_draws: float = 1e-2
    above_mass: float = 1e-3

    def draws(self, dim: int) -> float:
        """Return the height that 99 of 100 draws stay below: up to there a position is in the typical set."""
        return _quantile(dim, self.above_draws)

    def mass(self, dim: int) -> float:
        """Return the height up to which a position has mass: next to no draw is above it."""
        return _quantile(dim, self.above_mass)

    def training(self, dim: int) -> float:
        """Return the height up to which evaluations are trained on, as `TrainingSet.typical_height`.

        It is far above both others, since a surrogate must also know how the potential rises beyond the draws.
        """
        return typical_height(dim)


@cache
def _quantile(dim: int, share_above: float) -> float:
    """Return half of the quantile of chi-squared with `dim` degrees of freedom."""
    return 0.5 * float(chdtri(dim, share_above))


@dataclass(frozen=True)
class MinimiseSettings:
    """BFGS from a start that may be far away (`minimise`)."""

    #: It ends when so many iterations gained less than `gain`, and a quadratic would not fall further. Guess.
    patience: int = 3
    gain: float = 0.3
    #: In a frame of the right scale it ends once a quadratic would fall by less than this. Guess.
    small_gain: float = 0.05
    #: Length of the first step, and how many times as long as the last one the next may be. Guess.
    first_step: float = 1.0
    growth: float = 30.0
    #: A step must gain this share of what the slope promises and reduce the slope to this share. Usual values are
    #: 1e-4 and 0.9 (Nocedal and Wright 2006, section 3.1). Guess.
    sufficient_decrease: float = 1e-3
    curvature_condition: float = 0.7
    #: Share of a step tried next if its end has no finite potential, and the range of interpolated shares. Guess.
    after_infinity: float = 0.1
    shortest: float = 0.05
    longest: float = 0.7
    #: Trials on one line, and what the slope must promise for another trial. Guess.
    max_trials: int = 12
    least_promise: float = 1e-3
    #: First difference step relative to the position; then as a share of the posterior's width. Derived: the rounding
    #: error of a potential of size 1e3 is then small against the difference.
    first_difference: float = 1e-4
    difference: float = 0.05
    #: A difference below this, relative to the potential, is rounding; the step then grows by `longer`. Derived from
    #: double precision with some margin.
    rounding: float = 1e-11
    longer: float = 30.0


@dataclass(frozen=True)
class CurvatureSettings:
    """The curvature at the end of a descent, and whether the posterior ends at all (`minimise`)."""

    #: Rises of the potential between which a step measures curvature well: well above rounding, inside the mass.
    least_rise: float = 0.003
    most_rise: float = 10.0
    #: Relative changes of the slope: too small to measure, aimed at, and too large. Guess.
    least_bend: float = 1e-3
    bend: float = 0.03
    most_bend: float = 0.5
    #: A potential that rose so far without bending is taken to be linear. Guess.
    most_straight: float = 1e5
    #: Rounds for all axes, and for axes along which nothing rises yet. Guess.
    rounds: int = 4
    flat_rounds: int = 14
    #: A step grows by this factor at most; nothing is looked for further out than `far`, relative to the centre.
    growth: float = 50.0
    far: float = 1e9
    #: Eigenvalues (mean 1) below `unsure` are measured again; in the end none counts as less than `floor`. Derived:
    #: terms beyond the quadratic make relative errors of about 0.1.
    unsure: float = 0.1
    floor: float = 0.02
    #: They are believed down to this in one turn; number of turns. Guess.
    softest: float = 1e-4
    max_turns: int = 8
    #: Widths relative to the start that are checked before the draws, how far out, and the rise that must be seen.
    suspect_width: float = 1e6
    look: float = 10.0
    least_rise_far: float = 0.1


@dataclass(frozen=True)
class TrustRegionSettings:
    """Descents on emulated outputs (`initialise`, `modes`)."""

    #: Positions stay within so many spreads of the prior, or so many times as far as the lowest one: models need not
    #: work further out. Guess.
    reach: float = 3.5
    further: float = 1.5
    #: A predicted gain below this ends the descent. Guess: half a unit of log-density does not matter.
    least_gain: float = 0.5
    #: The region shrinks below this ratio of actual to predicted gain, and grows above that one. Usual values.
    poor_ratio: float = 0.25
    good_ratio: float = 0.7
    shrink: float = 0.4
    grow: float = 2.5


@dataclass(frozen=True)
class InitialiseSettings:
    """How the typical set is found (`initialise`)."""

    #: Descents, each in the frame measured where the last ended; calls of each, plus so many per parameter. Guess.
    max_descents: int = 10
    calls: int = 60
    calls_each: int = 8
    #: The descent is over if a quadratic would fall less than this, plus so much per parameter. Guess.
    still_falls: float = 1.0
    still_falls_each: float = 0.05
    #: Calls of the descents of the other chains, with gradients and with values alone. Guess.
    calls_of_others: int = 10
    calls_of_others_values: int = 2
    #: Values alone: others that descend to their end, in case the first minimum is local; calls of each; and how far
    #: beyond the known positions they may go, as a share of the distance between these. Guess.
    n_to_the_end: int = 2
    calls_to_the_end: int = 25
    margin: float = 1.0
    #: Modes descended to, each far below the one before. Guess.
    max_modes: int = 4
    #: Relative distance from the start beyond which a density is improper; and if the evaluations ran out. Guess.
    endless: float = 1e15
    endless_when_spent: float = 1e6
    #: If they ran out, it must also be so many times as far away as after half of them. Guess.
    runs_away: float = 10.0
    #: Training points with mass needed to begin, plus so many per parameter; tries, each nearer. Guess.
    fewest: int = 3
    fewest_each: int = 1
    max_tries: int = 6
    nearer: float = 0.5
    #: Differences once the frame is known. Guess.
    difference: float = 0.05
    #: Outputs: share of the remaining evaluations for descents, or so many without a limit. Guess.
    output_share: float = 0.6
    output_most: int = 200
    #: Outputs: radius, in spreads of the prior, at which a descent ends. Guess.
    least_radius: float = 1e-6
    #: Outputs: training data within so many radii, which must vary so much in every direction. Guess.
    local: float = 2.0
    least_spread: float = 0.15
    #: Outputs: draws of the prior for each fresh descent, per parameter plus one; number of fresh descents. Guess.
    n_fresh: int = 2
    max_fresh: int = 3
    #: Outputs: a misfit so many standard deviations above its mean does not fit the data. Derived: chi-squared.
    far_off: float = 6.0
    #: Outputs: draws of the prior, and rounds on one emulator of it all. Guess.
    n_prior: int = 200
    max_rounds: int = 15


@dataclass(frozen=True)
class ChainSettings:
    """Chains on the surrogate alone, which cost no exact evaluation (`surrogate_chains`)."""

    #: Acceptance of inner steps that the step size is chosen for. Guess.
    acceptance: float = 0.85
    #: Largest step of the split integrator: a half turn would resonate. Spread of trajectory lengths. Guess.
    longest_step: float = 1.3
    jitter: float = 0.25
    #: A trajectory takes so many steps at most: a surrogate that needs more is too rough to be worth it. Guess.
    max_steps: int = 24
    #: Chains, discarded steps and kept steps that the frame is learned from. Guess.
    n_chains: int = 64
    n_discarded: int = 8
    n_steps: int = 12


@dataclass(frozen=True)
class ExploreSettings:
    """Chains that move on the surrogate and pay for one exact evaluation per move (`explore`)."""

    #: Cold chains at most, and tempered ones. Guess.
    max_cold: int = 8
    n_tempered: int = 4
    #: Longest trajectory and most inner steps of a move. Guess.
    longest: float = 2.2
    max_inner_steps: int = 3
    #: Moves grow while accepted more often than this, and shrink while less often. Guess.
    accepted_often: float = 0.5
    accepted_rarely: float = 0.25
    lengthen: float = 1.4
    shorten: float = 0.7
    #: sd(D) below which draws of the surrogate define the frame. Guess.
    fair: float = 1.5
    #: sd(D) above which any descent is accepted: it is search, not sampling. Guess.
    far_off: float = 3.0
    #: Uncertain points: evaluated in each round, least distance apart, least posterior sd. Guess.
    n_uncertain: int = 4
    apart: float = 0.5
    unsure: float = 0.5
    #: Uncertain points: inverse temperatures of the pool, its size for each, and steps. Few steps from many positions,
    #: so that rounding does not grow into other points on another machine. Guess.
    pool_exponents: tuple[float, ...] = (0.4, 0.15)
    pool_size: int = 48
    pool_steps: int = 4
    #: Exact steps beside the surrogate: length, most leapfrog steps of one. Guess.
    trajectory_length: float = 1.6
    max_trajectory_steps: int = 12
    #: Share of tests outside the support from which it has an edge; moves of the final kernel that are tried there, and
    #: the fewest that say something. Guess.
    edge: float = 0.03
    n_moves: int = 32
    fewest_moves: int = 12
    #: By values such moves test the surrogate, at this share of the draws' cost at most. Guess.
    move_share: float = 0.02


@dataclass(frozen=True)
class ScoreSettings:
    """How well exact potentials were predicted (`record`)."""

    #: Positions are the same if all parameters are this close, each relative to its size and spread: recorded ones may
    #: differ by rounding. Derived: a thousand times the rounding error of a change of coordinates.
    same: float = 1e-12
    #: Fewest tests for an sd(D). Derived: its relative error is then about 0.2.
    min_tests: int = 12
    #: Ratios of two sds beyond so many standard errors are clear. Derived: three standard errors.
    clearly_wider: float = 3.0
    #: Inverse variance of the usual learning rate among posteriors. Guess.
    rate_precision: float = 4.0
    #: A surprise is a potential so far below what was predicted. Derived: e times the density.
    surprise: float = 1.0
    #: Last tests that surprises are counted in. Guess.
    n_last: int = 12


@dataclass(frozen=True)
class CoverageSettings:
    """Evaluations beyond the outermost draws of the surrogate (`coverage`)."""

    #: Draws of the surrogate, steps from few chains, and from many positions. Guess.
    n_draws: int = 192
    n_steps: int = 16
    n_few_steps: int = 5
    length: float = 2.0
    #: Outermost draws whose ridge is traced, ridge ends evaluated, other draws, outward steps. Guess.
    n_far: int = 32
    n_ridges: int = 6
    n_others: int = 2
    n_outwards: int = 3
    #: Range of step lengths along the softest direction, and outwards. Guess.
    along: tuple[float, float] = (0.7, 2.2)
    outwards: tuple[float, float] = (0.4, 1.2)
    #: Least distance between points that are continued. Guess.
    apart: float = 0.7
    #: A surprise is grave if the potential is so far below the prediction. Guess.
    grave: float = 2.0
    #: A *pit* is a prediction below all known potentials that is too low by this. Guess.
    pit: float = 10.0
    #: Share of surprises that calls for more learning. Guess.
    many: float = 0.1
    #: Ridges: curvature differences that do not count; back steps as a share of the step ahead; share of the bend that
    #: is continued (parabolas straighten outwards, circles do not); largest deviation from the straight step. Guess.
    alike: float = 0.1
    back: float = 0.25
    damped: float = 0.5
    astray: float = 2.0
    #: Ridges and tails: Newton steps across, the longest, and the least curvature. Guess.
    n_newton: int = 4
    longest: float = 1.0
    least_bend: float = 0.2


@dataclass(frozen=True)
class TailSettings:
    """Profiles of single parameters, far out (`tails`)."""

    #: Sides followed (those with the longest tails), followed further out, and tried once more lower. Guess.
    n_sides: int = 8
    n_again: int = 6
    n_last: int = 3
    #: Chains of the final kernel on the surrogate, discarded steps, kept steps. Guess.
    n_chains: int = 64
    n_discarded: int = 8
    n_steps: int = 32
    #: A tail is measured from the draw with so many draws beyond it, or from one in so many. Guess.
    fewest: int = 3
    one_of: int = 200
    #: How many times as far as the outermost draw: first, then. Guess.
    times: tuple[tuple[float, float], tuple[float, float]] = ((1.2, 1.4), (1.7, 2.5))
    #: Sides that rise faster than this share of a normal's rise are not followed further. Guess.
    slow: float = 0.6
    #: Where the profile is met on its way out, as a share of the way. Guess.
    inside: float = 0.5
    #: Distances beyond its end, in units of the way to it, at which the surrogate is read: dense near 0, where the
    #: density is. Derived as a quadrature grid.
    grid: tuple[float, ...] = (0.0, 0.03, 0.07, 0.12, 0.2, 0.3, 0.45, 0.65, 0.9, 1.2, 1.6, 2.1, 2.8, 4.0, 6.0)
    #: Rounds of Newton steps to the bottom of the profile. Guess.
    n_descents: int = 3
    #: Hidden share of a variance that calls for more learning. Guess; chance alone makes (2 / 4000)^(1/2) = 0.02.
    hidden: float = 0.05
    #: Errors up to `close` hide nothing; least rise told from none; how far below its end the surrogate may be. Guess.
    close: float = 1.0
    least_rise: float = 0.2
    deepest: float = -1.0
    #: Least predicted gain of one more trial, and least curvature told from rounding. Guess.
    least_gain: float = 0.1
    least_curvature: float = 0.01
    #: Tails are learned so often; sd(D) that is good enough after that, or so many times as large as before. Guess.
    max_turns: int = 3
    good_enough: float = 0.1
    worse: float = 1.5
    #: A look along tails that costs more than this share of the draws is not taken. Guess.
    share: float = 0.02


@dataclass(frozen=True)
class ModeSettings:
    """Separate modes, the search for them, and jumps between them (`modes`)."""

    #: A rise of the surrogate above both ends that chains hardly climb, e^-4; points on the way. Derived, guess.
    barrier: float = 4.0
    n_on_the_way: int = 9
    #: Jumps: chains from each place (a position that may lie in a mode of its own), their steps, steps kept. Guess.
    n_each: int = 16
    n_steps: int = 24
    n_kept: int = 12
    #: Jumps: places at most, and known positions that may become places. Guess.
    max_places: int = 16
    max_known: int = 128
    #: Rise above both ends from which on draws of both are compared. Less than a barrier, because an end may be a draw
    #: that is itself a few units above the bottom of its mode. Guess.
    low_barrier: float = 2.0
    #: Share of draws that two clouds exchange from which on they are one mode. Derived: those that exchange less are
    #: correlated over more than 50 steps, too many for 1000 draws.
    shared: float = 0.15
    #: Searches for other modes, each after one that found some; rounds to learn a new or restored mode. Guess.
    max_searches: int = 3
    n_rounds: int = 6
    #: Outputs: descents (16 miss a mode that a fifth of the prior descends to 3 times in 100; derived), their steps,
    #: and the radius at which they end. Guess.
    n_descents: int = 16
    max_steps: int = 20
    least_radius: float = 1e-3
    #: Outputs: cost as a share of the draws, and evaluations allowed even if that is less. Guess.
    share: float = 0.03
    least: int = 48
    #: Outputs: training data of a step, in multiples of what a plane takes, and the fewest. Guess.
    times: int = 2
    fewest: int = 8
    #: A known mode is predicted within this, or within so many sd(D). Guess.
    off: float = 2.0
    sds_off: float = 5.0
    #: Outputs: descents on the surrogate alone, iterations, least distance of ends in spreads of the prior. Guess.
    n_free: int = 48
    max_iterations: int = 60
    apart: float = 0.1
    #: Known positions compared with the end of a descent. Guess.
    n_nearest: int = 8
    #: Densities: descents, their distances in widths of the known mode, calls of each. Guess.
    n_far: int = 12
    nearest: float = 6.0
    furthest: float = 60.0
    max_calls: int = 30
    #: Densities: mass far out, relative to the known mode, that is worth learning. Guess.
    much: float = 0.1
    #: Densities: cost as a share of the draws, and evaluations allowed even if that is less. Guess.
    far_share: float = 0.015
    far_least: int = 40


@dataclass(frozen=True)
class SelectionSettings:
    """Which surrogates are trained, and which one is used (`selection`)."""

    #: sd(D) of the others from which on hidden units, and a Gaussian process, are trained. Guess.
    too_plain: float = 0.05
    still_poor: float = 0.2
    #: Up to so many parameters all candidates are trained from the start: they cost little there. Guess.
    few_parameters: int = 6
    #: Hidden units. Guess.
    n_hidden: int = 300
    #: Rows of a process at most (1 per value, dim per gradient), which bounds its cost: until its sd(D) is below
    #: `StoppingSettings.poor`, and from then on. Measured on the elliptic PDE with gradients (20 parameters, eight
    #: seeds): 3200 rows give sd(D) 0.16 in the draws, 4800 give 0.12. It is not tried unless the fewer rows hold
    #: `enough` evaluations per parameter. Guess.
    few_rows: int = 3200
    max_rows: int = 4800
    enough: int = 5
    #: Rows that its hyperparameters are learned from, which takes dozens of factorisations. Guess.
    learned_from: int = 700
    #: Hyperparameters are learned again once there are so many times as many data. Guess.
    relearn: float = 1.5
    #: Another candidate is taken if its sd(D) is this much smaller. Guess.
    clearly: float = 0.95
    #: A quadratic this good is used in any case: it costs least and its tails cannot go wrong. Guess.
    good_enough: float = 0.02
    #: Candidates are trained again once there are so many times as many data; a ridge strength is chosen again. Guess.
    retrain: float = 1.2
    steady: float = 1.5


@dataclass(frozen=True)
class TuneSettings:
    """The kernel of the draws (`tune`)."""

    #: Trajectory lengths with their jitter. The narrow ones, a little over a quarter turn, end on the other side.
    lengths: tuple[float, ...] = (1.6, 2.0, 2.5, 1.8, 2.1, 2.25)
    jitters: tuple[float, ...] = (0.4, 0.4, 0.4, 0.1, 0.1, 0.1)
    #: Numbers of inner steps tried. Guess.
    inner_steps: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 11, 15)
    #: Chains on the surrogate, inner steps before they count, moves beyond the longest lag. Guess.
    n_chains: int = 128
    n_discarded: int = 12
    more: int = 3
    #: Trajectory length of those first steps. Guess.
    first_length: float = 1.7
    #: Gradients of the surrogate per draw at most, unless few inner steps take more: each takes tens of microseconds.
    max_gradients: int = 160
    #: Exponents of the number of gradients that they must be worth (0.04: twice as many must gain 3 in 100), and where
    #: less is certain. Guess.
    worth: float = 0.04
    worth_unsure: float = 0.07
    #: Jumps between components must be better by this factor. Guess.
    clearly: float = 1.05
    #: Acceptance of inner steps: rejected ones undo what the others gain. Guess.
    acceptance: float = 0.95
    least_acceptance: float = 0.01
    #: From so many inner steps on components are tried, with these numbers of inner steps and so many draws. Guess.
    many: int = 5
    fewer_steps: tuple[int, int] = (3, 6)
    n_draws: int = 10
    #: Lags of draws (odd), and the least autocorrelation time believed. Guess.
    max_lags: int = 5
    least_time: float = 0.3
    #: Largest share of a pair of lags that the next pair keeps. Guess.
    most_left: float = 0.95
    #: Positions further out, in units of their quartiles, count as this far. Guess.
    furthest: float = 4.0
    #: Components of a mode: numbers tried, tries of each, iterations. Guess.
    n_components: tuple[int, ...] = (2, 3, 4, 6, 8)
    n_tries: int = 2
    max_iterations: int = 20
    #: Draws of a component at least, plus so many per parameter. Guess.
    fewest: int = 16
    fewest_each: int = 2
    #: Inner steps by turns: shares of those in non-centred coordinates, and numbers of inner steps. On centred eight
    #: schools with the exact potential as surrogate, 1, 3, 10 and 30 inner steps gave 0.19, 0.59, 0.94 and 1.0
    #: effective draws of log tau per value with a share of 0.5, and 0.48, 0.79, 0.96 and 1.0 with 0.9. Without turns it
    #: was 0.001 to 0.5, and mostly with too little or too much of the neck. A share of 1 is not tried: draws from few
    #: chains may hide what only the kernel's own coordinates reach. One run of each; the shares are a guess.
    turn_shares: tuple[float, ...] = (0.5, 0.9)
    turn_steps: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 30)
    #: Gradients of the surrogate per draw at most, by turns: about 30 inner steps of 10. Guess.
    max_turn_gradients: int = 320
    #: Trajectory length and jitter in non-centred coordinates. With 3 inner steps and a share of 0.5, lengths
    #: of 1.4, 1.8, 2.2, 2.6 and 3.2 gave 0.37, 0.50, 0.61, 0.65 and 0.69, each at a cost of its length. Guess.
    turn_length: float = 2.2
    turn_jitter: float = 0.4
    #: Rounds in which their frame is learned, each from draws by turns of the round before, since centred chains alone
    #: do not reach the neck of a funnel. Here 2 and 3 rounds gave 0.36 and 0.52 with 3 inner steps (one run). Moves
    #: of each round, and inner steps of a move. Guess.
    turn_rounds: int = 3
    turn_moves: int = 6
    turn_walk: int = 5


@dataclass(frozen=True)
class StoppingSettings:
    """When enough has been learned (`stopping`, `adapt`)."""

    #: sd(D) from which on a surrogate is of no use: exact steps cost less. Derived from the efficiency, which is 0.1.
    useless: float = 1.3
    #: The same for values alone, where there are no exact steps. Derived from an efficiency of 0.03.
    useless_values: float = 1.7
    #: How much larger the training set is in the look ahead, and the usual exponent of sd(D)'s fall. Guess.
    look_ahead: float = 1.25
    usual_rate: float = 0.7
    #: Share of the draws' cost that warm-up may always spend. Guess.
    cheap_share: float = 0.03
    #: Growth of the training set before another look for missed mass. Guess.
    growth: float = 0.3
    #: sd(D) above which the surrogate is poor, the ratio that counts as better, and the largest that counts. Guess.
    poor: float = 0.5
    better: float = 0.9
    hopeless: float = 4.0
    #: Evaluations that say something of a surrogate, plus so many per parameter. Guess.
    few: int = 40
    few_each: int = 2
    #: Share of surprises below which learning may stop. Guess.
    few_surprises: float = 0.1
    #: Restarts at most. Guess.
    max_restarts: int = 3
    #: Values alone: tests at moves of the final kernel at most, and the ratio of sd(D) there to that of warm-up that
    #: calls for more learning. Guess: sd(D) of 32 moves has a relative error of 0.12.
    max_tests: int = 3
    clearly_worse: float = 1.5
    #: Values alone: comparisons before learning may stop. Derived: their later half gives sd(D) to about 0.2.
    fewest_tests: int = 24
    #: Rounds without a move after which the frame is narrowed, and after which exploring ends. Guess.
    few_idle: int = 3
    max_idle: int = 12
    #: Growth of the data since the last training that calls for another before looking beyond. Guess.
    news: float = 1.05


@dataclass(frozen=True)
class TrustSettings:
    """The share of exact steps that the draws need beside the surrogate, from the doubt about it (`trust`)."""

    #: sd(D) up to which there is no doubt; it is 1 from `StoppingSettings.useless` on. Guess.
    good: float = 0.5
    #: Share of surprises up to which there is no doubt, and from which on it is 1. Guess.
    few_surprises: float = 0.1
    many_surprises: float = 0.4
    #: The least doubt if the last look beyond the outermost draws found missed mass. Guess.
    missed: float = 0.3
    #: From this doubt on all steps are exact: with so many exact ones the others are not worth having. Guess.
    most_mixed: float = 0.5
    #: Before a fall-back: rays and their opposites, the two radii in widths, and the least rise between them, relative
    #: to that of a density with an infinite integral. Guess; a Cauchy distribution has 2 in one dimension.
    n_rays: int = 2
    radii: tuple[float, float] = (50.0, 2500.0)
    least_tail: float = 1.05


@dataclass(frozen=True)
class AdaptationSettings:
    """All settings of the adaptation.

    >>> from dataclasses import replace
    >>> without_tails = replace(DEFAULT, stages=replace(DEFAULT.stages, tails=False))
    >>> without_tails.stages.tails, without_tails.tails.n_sides
    (False, 8)
    """

    stages: StageSwitches = StageSwitches()
    heights: HeightSettings = HeightSettings()
    minimise: MinimiseSettings = MinimiseSettings()
    curvature: CurvatureSettings = CurvatureSettings()
    trust_region: TrustRegionSettings = TrustRegionSettings()
    initialise: InitialiseSettings = InitialiseSettings()
    chains: ChainSettings = ChainSettings()
    explore: ExploreSettings = ExploreSettings()
    score: ScoreSettings = ScoreSettings()
    coverage: CoverageSettings = CoverageSettings()
    tails: TailSettings = TailSettings()
    modes: ModeSettings = ModeSettings()
    selection: SelectionSettings = SelectionSettings()
    tune: TuneSettings = TuneSettings()
    stopping: StoppingSettings = StoppingSettings()
    trust: TrustSettings = TrustSettings()


#: What `leapwise.Auto()` uses.
DEFAULT = AdaptationSettings()
