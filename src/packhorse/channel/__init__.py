"""The wall between the processes: bytes go through it, objects do not.

listener   where an engine is reached, and who may reach it
channel    messages of any size over one connection, never blocking
codec      what the messages mean
board      shared words of memory: one process writes each, all may read
"""
