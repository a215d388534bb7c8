#!/bin/bash
# A job of one process on each of four nodes:
#
#   sbatch examples/clusters/slurm.sh
#   sbatch --nodes=2 --ntasks-per-node=8 --cpus-per-task=4 examples/clusters/slurm.sh my_program.py --its arguments
#
# sbatch reads the lines that begin with #SBATCH; what its command line says comes before them. The job has the
# environment of the shell that calls sbatch, so activate the one with jaxring first.
#SBATCH --job-name=jaxring
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
set -euo pipefail
program=("$@")
if [ $# = 0 ]; then program=(examples/clusters/job.py); fi

# One line of each process: its addresses, and whether it found RDMA.
export JAXRING_DEBUG=${JAXRING_DEBUG:-INFO}
# What each process did last, for `jaxring trace diff`, also if it is killed.
export JAXRING_TRACE_DIR=${JAXRING_TRACE_DIR:-$PWD/records-$SLURM_JOB_ID}
mkdir -p "$JAXRING_TRACE_DIR"

# What the nodes lack, settings that differ, and whether every process reaches every other, by what and how fast.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" jaxring doctor --job

# srun and not the script starts the processes, since the script runs once. By default srun lets the others go on when
# one fails, until jaxring's deadline has them fail, too; --kill-on-bad-exit ends them.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 --label python "${program[@]}"
