"""What can be done with the rows of a file: one task, with its options, each."""
