"""How fast a corpus is prepared, beside the tokenizer alone, and how much memory it takes.

    python benchmarks/corpus_preparation.py TEXT --megabytes 1000 --workers 2 1

Trains a WordPiece tokenizer on the text, repeats the text with changed words until it has the size, and prepares a
corpus of it: in processes of their own, whose memory is added up five times a second. Rates are per core, by the CPU
time of all processes, so that other work on the machine changes them little. `--lexicon 100000` prepares it in turn
without and with a lexicon of so many entries instead, which are runs of two or three words of the text. Linux only
(/proc).
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path


BARE_BYTES = 8_000_000  # of the text, for the rate of the tokenizer alone


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="text file, blank line between documents")
    parser.add_argument("--megabytes", type=int, default=100, help="size of the corpus in MB (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 1], help="processes (default: 2 1)")
    parser.add_argument("--entries", type=int, default=30_000, help="of the vocabulary (default: %(default)s)")
    parser.add_argument("--lexicon", type=int, metavar="ENTRIES", help="beside preparation with a lexicon")
    parser.add_argument("--repeats", type=int, default=3, help="of --lexicon (default: %(default)s)")
    parser.add_argument("--folder", help="where to put the temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        step("train", arguments.text, folder / "tokenizer", arguments.entries)
        size = enlarge(arguments.text, folder / "large.txt", arguments.megabytes * 1_000_000)
        if arguments.lexicon:
            compare_lexicon(folder, size, arguments)
            return
        for workers in arguments.workers:
            output = folder / f"corpus-{workers}"
            # Before and after, because what else the machine does changes the rate.
            bare = step("bare", arguments.text, folder / "tokenizer")["rate"]
            measured = step("prepare", folder / "large.txt", folder / "tokenizer", output, workers)
            bare = (bare + step("bare", arguments.text, folder / "tokenizer")["rate"]) / 2
            rate = size / 1e6 / measured["cpu_seconds"]
            print(
                f"\n{workers} worker(s), {size / 1e6:.0f} MB: {measured['seconds']:.1f} s, "
                f"{size / 1e6 / measured['seconds']:.2f} MB/s; {rate:.2f} MB/s a core, {rate / bare:.0%} of the "
                f"tokenizer alone ({bare:.2f})\npeak memory of all processes: {measured['rss']:.0f} MB resident, "
                f"{measured['pss']:.0f} MB with shared pages counted once\n\n{measured['report']}"
            )
        measured = step("iterate", output)
        print(
            f"\nonce through all documents: {measured['tokens'] / measured['seconds'] / 1e6:.0f} million tokens/s "
            f"({measured['tokens']:,} in {measured['seconds']:.1f} s); memory {measured['private']:.0f} MB, "
            f"{measured['rss']:.0f} MB with the pages of the file"
        )


def compare_lexicon(folder: Path, size: int, arguments: argparse.Namespace) -> None:
    """Prepare the same text without and with a lexicon, in turn."""
    step("entries", arguments.text, folder / "names.txt", arguments.lexicon)
    workers, rates = arguments.workers[0], {"without": [], "with": []}
    for repeat in range(arguments.repeats):
        for kind, names in (("without", []), ("with", [folder / "names.txt"])):
            output = folder / f"{kind}-{repeat}"
            measured = step("prepare", folder / "large.txt", folder / "tokenizer", output, workers, *names)
            rates[kind].append(size / 1e6 / measured["cpu_seconds"])
            print(
                f"\n{kind} a lexicon: {measured['seconds']:.1f} s, {rates[kind][-1]:.2f} MB/s a core; peak memory "
                f"{measured['pss']:.0f} MB\n{measured['report']}"
            )
            shutil.rmtree(output)
    shares = [with_it / without for with_it, without in zip(rates["with"], rates["without"], strict=True)]
    print(
        f"\nrate with {arguments.lexicon:,} entries: {', '.join(f'{share:.0%}' for share in shares)} of that without"
    )


def step(name: str, *arguments: object) -> dict:
    """Run one step in a process of its own; what it found, and the peak memory of it and its children in MB."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"]
    command[-1] += f"; import {Path(__file__).stem} as steps; steps.run_step(sys.argv[1:])"
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({} if name == "train" else {"RAYON_NUM_THREADS": "1"})
    process = subprocess.Popen(
        [*command, name, *map(str, arguments)], stdout=subprocess.PIPE, env=environment, text=True
    )
    peaks = {"Rss": 0, "Pss": 0}
    while process.poll() is None:
        for kind, megabytes in memory_of_tree(process.pid).items():
            peaks[kind] = max(peaks[kind], megabytes)
        time.sleep(0.2)
    if process.returncode:
        sys.exit(f"the step {name} failed")
    return {"rss": peaks["Rss"], "pss": peaks["Pss"]} | json.loads(process.stdout.read().splitlines()[-1])


def run_step(arguments: list[str]) -> None:
    """In the process of a step."""
    name, *rest = arguments
    steps = {
        "train": train,
        "entries": entries,
        "bare": bare_rate,
        "prepare": prepare,
        "iterate": iterate,
    }
    print("\n" + json.dumps(steps[name](*rest)))


def train(text: str, folder: str, entries: str) -> dict:
    """A lower-case WordPiece tokenizer."""
    from hf_encoders import HfeBertConfig, train_tokenizer

    with open(text, encoding="utf-8") as lines:
        train_tokenizer(lines, HfeBertConfig, int(entries), 512).save_pretrained(folder)
    return {}


def bare_rate(text: str, folder: str) -> dict:
    """The tokenizer on whole lines, and nothing else."""
    from transformers import AutoTokenizer

    backend = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    data = Path(text).read_bytes()[:BARE_BYTES]
    lines = [line for line in data.decode(errors="ignore").splitlines() if line]
    seconds = []
    for _ in range(3):
        began = time.process_time()
        for i in range(0, len(lines), 2000):
            backend.encode_batch_fast(lines[i : i + 2000], add_special_tokens=False)
        seconds.append(time.process_time() - began)
    return {"rate": len(data) / 1e6 / (sum(seconds) / len(seconds))}


def entries(text: str, file: str, number: str) -> dict:
    """Write distinct runs of two or three words of the text, evenly over it."""
    words = re.findall(r"\w+", Path(text).read_text(encoding="utf-8"))
    phrases, generator = set(), random.Random(0)
    while len(phrases) < int(number):
        start = generator.randrange(len(words) - 3)
        phrases.add(" ".join(words[start : start + generator.randint(2, 3)]))
    Path(file).write_text("\n".join(sorted(phrases)), encoding="utf-8")
    return {}


def prepare(text: str, tokenizer: str, output: str, workers: str, names: str | None = None) -> dict:
    """The whole preparation: reading, splitting, tokenising, writing, merging, counting."""
    from transformers import AutoTokenizer

    from hf_encoders import prepare_corpus, read_entries

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    began, cpu_began = time.perf_counter(), cpu_seconds()
    lexicon = read_entries(names) if names else None
    report = prepare_corpus([text], output, loaded, lexicon=lexicon, workers=int(workers))
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu_began
    return {"seconds": seconds, "cpu_seconds": cpu, "report": str(report)}


def iterate(output: str) -> dict:
    """Every document once, in order."""
    import datasets

    from hf_encoders.corpus.flat_corpus import FlatCorpus

    began = time.perf_counter()
    store = FlatCorpus.of(datasets.load_from_disk(output))
    total = tokens = 0
    token_starts = store.sentence_offsets[store.document_offsets]
    for first, end in zip(token_starts[:-1], token_starts[1:], strict=True):
        document = store.tokens[first:end]
        tokens += len(document)
        total += int(document.sum())
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    memory = {line[0]: int(line[1]) / 1e3 for line in lines if line[0] in ("VmRSS:", "RssAnon:")}
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "tokens": tokens, "private": memory["RssAnon:"], "rss": memory["VmRSS:"]}


def cpu_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def enlarge(text: Path, large: Path, size: int) -> int:
    """Repeat a text, in every copy with one other word in each line, so that no document is twice there."""
    lines = text.read_text(encoding="utf-8").splitlines()
    written = copy = 0
    with open(large, "w", encoding="utf-8") as file:
        while written < size:
            for line in lines:
                words = line.split()
                if copy and words:
                    words[copy % len(words)] = f"{words[(copy * 7) % len(words)]}{copy}"
                    line = " ".join(words)
                written += file.write(line + "\n")
                if written >= size and not line:
                    break
            file.write("\n")
            copy += 1
    return large.stat().st_size


def memory_of_tree(process: int) -> dict[str, float]:
    """Memory of a process and its descendants in MB: resident, and with shared pages counted once."""
    sums = {"Rss": 0.0, "Pss": 0.0}
    try:
        children = " ".join(path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")).split()
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            kind = line.split(":")[0]
            if kind in sums:
                sums[kind] += int(line.split()[1]) / 1e3
    except (FileNotFoundError, ProcessLookupError):
        return sums  # it has ended meanwhile
    for child in children:
        for kind, megabytes in memory_of_tree(int(child)).items():
            sums[kind] += megabytes
    return sums


if __name__ == "__main__":
    main()
