"""Jobs on a Slurm cluster, by the same verbs: sbatch, squeue, scontrol and scancel behind them."""
