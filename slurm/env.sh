# The only file here that differs from site to site; every job script sources it on the node it runs on.

# Modules, if Python or MPI comes from one:
#   module load python/3.11 openmpi

# The environment that has `gaian`:
source "${SLURM_SUBMIT_DIR:-.}/.venv/bin/activate"

# What starts the ranks, without their number. `srun --mpi=list` tells what this Slurm offers:
#   MPICH (what pip installs with this package): mpirun -bind-to core:$SLURM_CPUS_PER_TASK, or srun --mpi=pmi2
#   Open MPI: mpirun --map-by slot:PE=$SLURM_CPUS_PER_TASK --bind-to core, or srun --mpi=pmix
GAIAN_LAUNCH=${GAIAN_LAUNCH:-mpirun -bind-to core:${SLURM_CPUS_PER_TASK:-1}}

# Compiled kernels are cached beside the package. Where nodes have different processors or may not write there:
#   export NUMBA_CACHE_DIR=$HOME/.cache/gaian/$(uname -m)-$SLURM_JOB_PARTITION
