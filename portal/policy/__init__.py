"""Trying a policy on what really came, before anybody feels it."""
