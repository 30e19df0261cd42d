"""The frozen words that the books (quotas) and the gateway both speak.

Standard library only, loads no Django: the gateway imports this package and nothing else of quotas.
"""
