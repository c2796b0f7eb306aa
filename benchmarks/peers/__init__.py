"""One file for each library that is measured: how its workers are started, and the works they can do."""
