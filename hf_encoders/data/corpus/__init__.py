"""Text to documents of sentences to token ids on disk, and reports on them.

`preparation.py` prepares a corpus from files and datasets with several processes, `tokenized.py` from any documents in
this process; `sentence_store.py` reads a corpus as flat arrays.
"""
