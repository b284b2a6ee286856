"""One-line mistakes in the most important lines, each with the test that must find it.

``of_*.py`` have the mutants, by subject; ``trial.py`` puts one into a copy of the tree and runs its killer there.
``python -m tests.mutants --help`` runs all of them; ``make test`` runs a few, and checks that each still names a line.
"""
