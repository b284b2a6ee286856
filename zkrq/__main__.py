"""``python -m zkrq``."""

import sys

from zkrq.cli import main

sys.exit(main())
