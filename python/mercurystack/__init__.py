"""Mercury: gradients summed over workers, the most urgent first.

    import mercurystack

    with mercurystack.Context() as context, context.open_job("sum") as job:
        gradient = context.zeros(100_000)        # a NumPy array, in memory of Mercury's
        tensor = job.declare(7, gradient)
        gradient[:] = job.rank + 1
        tensor.push_pull().wait()                # `gradient` is now the sum over all workers

Every process of the job runs this; its launcher's environment (torchrun, mpirun, srun, MERCURY_*) says which it
is. Failures are MercuryError, with errno and text.
"""

from mercurystack._context import Context
from mercurystack._errors import JobFailedError, MercuryError, MercuryTimeoutError
from mercurystack._job import Contributors, Job, JobOptions, JobStats, Tensor
from mercurystack._native import version
from mercurystack._operation import Operation

__version__ = "0.1.0"  # of the package, as pyproject.toml says; version() is the library's
__all__ = ["Context", "Contributors", "Job", "JobFailedError", "JobOptions", "JobStats", "MercuryError",
           "MercuryTimeoutError", "Operation", "Tensor", "version"]
