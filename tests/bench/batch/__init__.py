"""What batch work costs, and how it behaves beside people who chat.

`python -m tests.bench.batch NAME [--lines N …]` starts the whole product on a simulated engine,
runs one measurement and prints it beside what was asked.
"""
