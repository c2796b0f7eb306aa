"""Who runs where with what environment, computed as data; the dry run prints it."""
