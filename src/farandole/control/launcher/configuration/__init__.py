"""Sources of settings: the project file, files of variables, and the order in which they take effect."""
