# The only file here that differs from site to site; every job script sources it on the node it runs on.

# Modules, if Python or MPI comes from one:
#   module load python/3.11 openmpi

# The environment that has `gaian`:
source "${SLURM_SUBMIT_DIR:-.}/.venv/bin/activate"

# What starts the ranks. `srun --mpi=list` tells what this Slurm offers:
#   MPICH (what pip installs with this package): srun --mpi=pmi2, or mpirun
#   Open MPI: srun --mpi=pmix, or mpirun
# Left empty, it is srun --mpi=pmi2 where Slurm has that, else mpirun.
GAIAN_LAUNCH=${GAIAN_LAUNCH:-}

# Compiled kernels are cached beside the package. Where nodes have different processors or may not write there:
#   export NUMBA_CACHE_DIR=$HOME/.cache/gaian/$(uname -m)-$SLURM_JOB_PARTITION
