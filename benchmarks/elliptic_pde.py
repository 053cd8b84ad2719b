"""Time the elliptic PDE problem: against scikit-fem, gradients against values, batches, the Fisher metric.

Machines are noisy, so every figure is a ratio: both sides are timed directly after each other, ten calls in a
row as in a trajectory, many times, and the median of the ratios is printed. "Outputs" are the forward
model alone, from parameters to 121 pressures, on both sides; "value" is a whole log-density.

    python benchmarks/elliptic_pde.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from leapwise.problems.elliptic import elliptic_pde
from leapwise.problems.elliptic.solver import MAX_BANDED, Stencil, _banded, _sparse


def seconds(function: Callable[[], Any], calls: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - started) / calls


def compare(a: Callable[[], Any], b: Callable[[], Any], repeats: int) -> tuple[float, float, float]:
    """Return the median of time(a) / time(b), and the median times in milliseconds."""
    a(), b()
    pairs = np.array([(seconds(a, 10), seconds(b, 10)) for _ in range(repeats)])
    return float(np.median(pairs[:, 0] / pairs[:, 1])), *(1e3 * np.median(pairs, axis=0))


def scikit_fem_outputs(n: int, weights: np.ndarray) -> Callable[[], np.ndarray]:
    """Do the same with scikit-fem's own assembly and solver; everything that does not change is prepared outside."""
    import skfem
    from skfem.helpers import dot, grad

    mesh = skfem.MeshQuad.init_tensor(np.linspace(0, 1, n + 1), np.linspace(0, 1, n + 1))
    basis = skfem.Basis(mesh, skfem.ElementQuad1(), intorder=3)
    x = np.asarray(basis.global_coordinates())
    modes = elliptic_pde(n).model.modes.at(x.reshape(2, -1).T)
    form = skfem.BilinearForm(lambda u, v, w: w.c * dot(grad(u), grad(v)))
    x1, x2 = basis.doflocs
    sides = basis.get_dofs(lambda x: (x[1] == 0) | (x[1] == 1))
    lift = np.where(x2 < 0.5, x1, 1 - x1)
    observe = basis.probes(np.stack(np.meshgrid(*2 * [np.linspace(0, 1, 11)], indexing="ij")).reshape(2, -1))

    def outputs() -> np.ndarray:
        c = np.exp(modes @ weights).reshape(x.shape[1:])
        matrix = skfem.asm(form, basis, c=c)
        return np.asarray(observe @ skfem.solve(*skfem.condense(matrix, x=lift, D=sides)))

    return outputs


def main() -> None:
    rng = np.random.default_rng(0)
    q, v = 0.5 * rng.standard_normal((4, 20)), rng.standard_normal((4, 20))
    elliptic_pde()  # makes the simulated data, once a process
    print(f"{'':46s}  ratio    first / ms   second / ms")

    def show(what: str, a: Callable[[], Any], b: Callable[[], Any], repeats: int) -> None:
        ratio, first, second = compare(a, b, repeats)
        print(f"{what:46s} {ratio:6.2f} {first:13.3f} {second:13.3f}", flush=True)

    for n, repeats in ((30, 30), (120, 3)):
        problem = elliptic_pde(n)
        target, metric = problem.target, problem.metric
        assert metric is not None
        local = metric.at(q[:1])

        def value(rows: int, target: Any = target) -> Callable[[], Any]:
            return lambda: target.evaluate(q[:rows], gradient=False)

        def gradient(rows: int, target: Any = target) -> Callable[[], Any]:
            return lambda: target.evaluate(q[:rows], gradient=True)

        def trace(metric: Any = metric) -> Any:
            return metric.at(q[:1]).trace_contraction()

        print(f"n = {n}: set up in {1e3 * seconds(lambda n=n: elliptic_pde(n)):.1f} ms")
        theirs, ours = scikit_fem_outputs(n, q[0]), lambda m=problem.model: m.forward(q[:1])
        assert np.abs(theirs() - ours()[0]).max() < 1e-10
        show("  scikit-fem's outputs / outputs", theirs, ours, repeats)
        show("  value and gradient / value", gradient(1), value(1), repeats)
        show("  4 values in a batch / value", value(4), value(1), repeats)
        show("  4 values and gradients in a batch / value", gradient(4), value(1), repeats)
        show("  Fisher metric / value and gradient", lambda m=metric: m.at(q[:1]), gradient(1), repeats)
        show("  Fisher metric with its trace / the same", trace, gradient(1), repeats)
        show(
            "  quadratic contraction / the same",
            lambda m=local: m.quadratic_contraction(v[:1]),
            gradient(1),
            repeats,
        )
    print(f"banded / sparse factorisation (banded is used up to n = {MAX_BANDED})")
    for n, repeats in ((30, 10), (64, 5), (90, 3), (120, 3)):
        x = rng.uniform(1.0, 2.0, size=(2 * n, 2 * n))
        stencil = Stencil.assemble(x)
        show(f"  n = {n}", lambda s=stencil: _banded(s), lambda s=stencil: _sparse(s), repeats)


if __name__ == "__main__":
    main()
