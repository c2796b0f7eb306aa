"""One script for each library, as its documentation has a user write it, and what the scripts share."""
