"""`ray start …` without the processes that a node of the tests does not need.

python -m tests.lab.executors.ray_node start …
"""

from __future__ import annotations


def main() -> None:
    """The command `ray`."""
    import ray
    from ray.scripts import scripts

    from slimprompt.cluster import without_unused_processes

    with without_unused_processes(ray):
        scripts.main()


if __name__ == "__main__":
    main()
