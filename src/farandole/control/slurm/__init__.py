"""Jobs on a Slurm cluster with the same verbs, through sbatch, squeue, scontrol and scancel."""
