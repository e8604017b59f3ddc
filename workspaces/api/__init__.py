"""The HTTP API for scripts, `/api/v1/`: a thin door onto the services.

Views check the shape of what was sent, call one service function and answer with rows read for the purpose. No rule about
workspaces lives here, and nothing here writes a workspace.
"""
