# The only file here that differs from site to site; every job script sources it on the node it runs on.

# Modules, if Python comes from one:
#   module load python/3.11

# The environment that has `gaian`:
source "${SLURM_SUBMIT_DIR:-.}/.venv/bin/activate"

# Compiled kernels are cached beside the package. Where nodes have different processors or may not write there:
#   export NUMBA_CACHE_DIR=$HOME/.cache/gaian/$(uname -m)-$SLURM_JOB_PARTITION
