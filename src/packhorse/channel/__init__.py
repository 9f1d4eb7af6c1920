"""The wall between the processes: bytes go through it, objects do not.

listener   where an engine is reached, and who may reach it
channel    messages of any size over one connection, never blocking
codec      what the messages mean
journal    what an engine has on its device, kept for after its death
board      shared words of memory: one process writes each, all may read
"""
