"""Tell the version of zkrq."""

__version__ = "0.2.0"
