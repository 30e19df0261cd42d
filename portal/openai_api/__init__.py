"""What files and batches share so that the unmodified `openai` client works against them.

Keys as authentication, the error envelope, paging by `after`, and no content negotiation.
"""
