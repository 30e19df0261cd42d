"""Batch jobs: rows are the truth, Celery rings the bell, lines go through the gateway."""
