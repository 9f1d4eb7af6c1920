"""The commands that take a file of texts and write the same file with more columns."""
