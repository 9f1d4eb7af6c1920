"""`packhorse bench rivals`: this engine beside other engines on a CPU, each at its best"""
