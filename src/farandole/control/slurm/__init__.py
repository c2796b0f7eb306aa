"""The place `slurm`: job commands on a Slurm cluster, by sbatch, squeue, scontrol and scancel."""
