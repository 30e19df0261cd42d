"""Batches from the terminal, against Fairway or any server with OpenAI's Batch API."""
