"""The launcher: from what the user wants to a plan, from the plan to running workers, and their end."""
