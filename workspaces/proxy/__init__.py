"""The door to a workspace: who may go where, HTTP and WebSocket forwarding, header rules, activity, own-origin tickets.

Mounted beside Django, never behind its handler. Reads workspace rows; writes only through the service layer. Never imports
the coordinator, an engine's or a store's library: where a workspace listens is in its `endpoint` column.
"""
