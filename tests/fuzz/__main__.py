"""`make fuzz`: many inputs for every parser, and a table of what became of them; exits with 1 after a defect."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time


def main() -> int:
    """Fuzz the named parsers, or all of them."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz")
    options.add_argument("--inputs", type=int, default=10_000, help="inputs of each parser")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("parsers", nargs="*", help="names of parsers; all without")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"HOME": home, "STOKER_HOME": f"{home}/stoker", "STOKER_LEASES": f"{home}/leases"}
        from tests.fuzz.outcome import feed
        from tests.fuzz.parsers import PARSERS

        failures = inputs = 0
        titles = ("inputs", "accepted", "refused", "defects", "slowest", "took")
        print(f"{'parser':<22}" + "".join(f"{title:>10}" for title in titles), flush=True)
        for name in arguments.parsers or PARSERS:
            start = time.monotonic()
            parser = PARSERS[name]
            count = max(1, int(arguments.inputs * parser.share))
            outcome = feed(parser, count=count, seed_number=arguments.seed, collect=True)
            inputs, failures = inputs + outcome.inputs, failures + outcome.failures
            figures = (outcome.inputs, outcome.accepted, outcome.refused, outcome.failures)
            seconds = (outcome.slowest, time.monotonic() - start)
            print(
                f"{name:<22}" + "".join(f"{n:>10}" for n in figures) + "".join(f"{n:>9.2f}s" for n in seconds),
                flush=True,
            )
            for kind, values in sorted(outcome.defects.items(), key=lambda pair: -len(pair[1])):
                smallest = min(values, key=lambda value: len(repr(value)))
                print(f"    {len(values)} × {kind}\n        such as {smallest!r}"[:500], flush=True)
        print(f"{inputs} inputs, {failures} defects")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
