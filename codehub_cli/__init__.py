"""`codehub`, the command line client: talks to a CodeHub server over its HTTP API and needs nothing but Python.

Must not import Django or anything of the server.
"""
