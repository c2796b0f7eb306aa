"""Where settings come from: the project file, files of variables, and which value is in effect."""
