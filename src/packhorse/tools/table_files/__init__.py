"""Files of rows, one text or pair each, read and written in constant memory.

A row that cannot be read is a ``BadRow`` and costs no other row. Formats:
text (one a line), CSV, TSV, JSON Lines and Parquet, one file of code each.
"""
