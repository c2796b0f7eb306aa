"""Facts about one or several machines, advice, and their presentation: `farandole doctor`."""
