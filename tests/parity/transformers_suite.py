"""Run the common model tests of transformers on our classes, or on its own.

    python tests/parity/transformers_suite.py                       # our classes, all families
    python tests/parity/transformers_suite.py --stock --family bert # transformers' own classes, one family
    python tests/parity/transformers_suite.py --compare             # both, and what only ours skips
    python tests/parity/transformers_suite.py -- -k resize -x       # everything after -- goes to pytest

Not collected by pytest: it needs the source distribution of transformers, which it downloads unless `--source` names
an unpacked one, and the package `parameterized`. Tests that need an accelerator run where there is one. Not covered,
because the source distribution leaves them out: the export and the generation tests, and those of single families.
"""

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest


FAMILIES = (
    "bert",
    "roberta",
    "albert",
    "xlm-roberta",
    "xlm",
    "distilbert",
    "electra",
    "xlnet",
    "modernbert",
    "deberta-v2",
)


class Outcomes:
    """Collects one outcome per test: failed or skipped when the test, or any of its subtests, was."""

    def __init__(self) -> None:
        """Start with no tests."""
        # {test case: {test: "passed" | "skipped" | "failed"}}
        self.tests: dict[str, dict[str, str]] = defaultdict(dict)
        self.reasons: dict[tuple[str, str], str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst outcome of setup, call, subtests and teardown."""
        _, test_case, test = report.nodeid.split("::")
        order = ("passed", "skipped", "failed")
        self.tests[test_case][test] = max(self.tests[test_case].get(test, "passed"), report.outcome, key=order.index)
        if report.skipped:
            self.reasons[test_case, test] = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""


def print_summary(outcomes: Outcomes) -> None:
    """Print one line per test case; pytest's own totals count every skipped subtest besides."""
    for test_case, tests in sorted(outcomes.tests.items()):
        counts = Counter(tests.values())
        print(f"{test_case:16}" + "".join(f"{counts[name]:5} {name}" for name in ("passed", "failed", "skipped")))


def print_comparison(outcomes: Outcomes) -> None:
    """Print, per family, the tests that ours skips and the stock classes pass."""
    for test_case, tests in sorted(outcomes.tests.items()):
        stock = outcomes.tests.get(test_case.removeprefix("Hfe"), {})
        ours_only = [test for test in sorted(tests) if tests[test] == "skipped" and stock.get(test) == "passed"]
        if test_case.startswith("Hfe"):
            print(f"{test_case}: {len(ours_only)} skipped here, passed by the stock classes")
            for test in ours_only:
                print(f"  {test}: {outcomes.reasons[test_case, test]}")


def main() -> int:
    """Run what the command line asks for; 0 when nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="unpacked source distribution of the installed transformers")
    parser.add_argument("--family", choices=FAMILIES, help="one family instead of all")
    parser.add_argument("--stock", action="store_true", help="test transformers' own classes")
    parser.add_argument("--compare", action="store_true", help="test both sides and list what only ours skips")
    parser.add_argument("--seed", type=int, default=0, help="of every test's inputs and weights (default 0)")
    parser.add_argument("pytest_args", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()

    # Read when transformers is imported, which `suite_source` does. No test here has business with the Hub.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here.parents[1]))
    from tests.parity import suite_source

    source = options.source.resolve() if options.source else suite_source.fetch()
    suite_source.check(source)
    # The cases read this at import: in this process, and in those that a pytest plugin may start.
    os.environ["TRANSFORMERS_SUITE"] = json.dumps(
        {
            "source": str(source),
            "families": [options.family] if options.family else FAMILIES,
            "stock_sides": [True, False] if options.compare else [options.stock],
            "seed": options.seed,
        }
    )
    # Neither the configuration nor the fixtures of this project's own tests apply to those of transformers.
    arguments = [str(here / "suite_cases.py"), "-c", os.devnull, f"--rootdir={here}", "--noconftest", "-q"]
    arguments += ["-W", "ignore::pytest.PytestWarning", "-p", "no:cacheprovider", "--tb=short"]
    outcomes = Outcomes()
    status = pytest.main([*arguments, *options.pytest_args], plugins=[outcomes])
    print_summary(outcomes)
    if options.compare:
        print_comparison(outcomes)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
