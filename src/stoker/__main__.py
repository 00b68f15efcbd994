"""``python -m stoker``: the same as the ``stoker`` command."""

from __future__ import annotations

import sys

from stoker.cli.main import main

sys.exit(main())
