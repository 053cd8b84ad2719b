r"""The elliptic PDE inverse problem of the paper's section 5.2: infer a diffusivity field from pressures.

================ ==========================================================================================
`solver`         the pressure for a diffusivity: bilinear elements as array operations, assembly, factorisation
`model`          mode weights to observed pressures, and the adjoint; the modes of the log-diffusivity
`problem`        the posterior, with its Fisher metric and the contractions of its derivative; pictures of the field
================ ==========================================================================================

Notation: c diffusivity, u pressure, :math:`\theta` mode weights, :math:`\Phi` modes at Gauss points, K
stiffness matrix, D nodes to slopes, P sums over Gauss points that share a slope, O observation, J Jacobian
of the outputs :math:`O u`.
"""

from leapwise.problems.elliptic.model import EllipticModel
from leapwise.problems.elliptic.problem import EllipticProblem, elliptic_pde, plot_field

__all__ = ["EllipticModel", "EllipticProblem", "elliptic_pde", "plot_field"]
