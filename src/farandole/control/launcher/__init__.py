"""The launcher: makes a plan from the user's job, starts the workers of the plan, and ends them."""
