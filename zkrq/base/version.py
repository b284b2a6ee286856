"""Tell the version of zkrq."""

__version__ = "0.1.0"
