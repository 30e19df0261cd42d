"""Sends lines through the gateway.

`attend` is what Celery calls; `room` is the event loop that lives in the worker process;
`store` is its only way to the rows; `verdict` and `window` decide without I/O; `client` speaks
HTTP. A runner may die at any point: its leases run out and another goes on.
"""
