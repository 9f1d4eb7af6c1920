"""The front end: HTTP and texts on one side, token ids on the other. It never imports torch.

process        starts and ends it
app            which path is answered by which route
connection     what uvicorn does not do for a connection: noticing who hung up, or stalls
body, schemas  from bytes to a request
admission      whether there is room for it
engine_client  from token ids to an answer
scores         from an answer to JSON
routes/        one file a route
"""
