"""``python -m zkrq``."""

import sys

from zkrq.cli.running import main

sys.exit(main())
