import subprocess
import sys

import pytest

CODE = """
import resource, sys
from slimprompt.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
faults = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(64_000_000)
    del block
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="requires glibc")
def test_freed_memory_is_reused():
    """Allocating 64 MB again after freeing it causes one page fault per page by default, and none if it was kept."""
    faults = {
        setting: int(
            subprocess.run([sys.executable, "-c", CODE, setting], capture_output=True, text=True, check=True).stdout
        )
        for setting in ("kept", "returned")
    }
    assert faults["kept"] < 100 < faults["returned"]
