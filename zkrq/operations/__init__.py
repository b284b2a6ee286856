"""Describe every public operation as data: parameters, rules, results.  The faces are made from it."""
