"""What a machine or several have, what to make of it, and how that is told: `farandole doctor`."""
