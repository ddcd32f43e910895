"""Linear models that directly optimize ROCArea or PRBEP, distributed over MPI ranks, with a proved gap.

Importing the package starts neither MPI nor PETSc.
"""

__version__ = "0.1.0"
