"""A run that goes on in another number of processes ends as the run that never changed."""

import pytest
import torch

from tests import processes
from tests.corpus.corpora import equal_documents
from tests.runs.elastic_run import RUNS, STEPS, train_part


@pytest.mark.processes
@pytest.mark.slow
def test_one_process_then_two_then_four_are_one_throughout(tmp_path):
    corpus = str(tmp_path / "corpus")
    equal_documents(24).save_to_disk(corpus)
    trained = {}
    for name, parts in {"elastic": (1, 2, 4), "constant": (1,)}.items():
        for number, count in enumerate(parts):
            last = STEPS * (number + 1) // len(parts)
            for ended in processes.run_all(train_part, count, tmp_path / name, corpus, last):
                assert ended.status == 0, ended.told
        trained[name] = torch.load(tmp_path / name / "trained.pt", weights_only=True)
    for run in RUNS:
        elastic, constant = trained["elastic"][run], trained["constant"][run]
        assert len(elastic["losses"]) == STEPS and len(set(constant["losses"])) == STEPS
        assert elastic["losses"] == pytest.approx(constant["losses"], abs=1e-6), run
        for name, value in constant["parameters"].items():
            assert torch.allclose(value, elastic["parameters"][name], atol=1e-6, rtol=0), (run, name)
