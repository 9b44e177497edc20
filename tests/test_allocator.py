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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_freed_memory_is_not_mapped_again():
    """Page faults of taking 64 MB that were free a moment ago: one per page as a rule, none if they were kept."""
    faults = {
        how: int(subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True).stdout)
        for how in ("kept", "given back")
    }
    assert faults["kept"] < 100 < faults["given back"]
