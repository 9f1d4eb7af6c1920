"""Files of rows through a model, whatever it does: in order, in constant memory, to be resumed.

Reading, tokenising, the model and writing run beside each other (``run.py``). What becomes of a
row is said by a ``RowTask`` (``tasks/``); how files look is said in ``tools/table_files``.
"""
