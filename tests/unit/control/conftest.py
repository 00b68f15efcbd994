"""Makes the rig importable by the tests beside it, and runs every test under asyncio."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
