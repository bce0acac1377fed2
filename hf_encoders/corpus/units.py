"""Which units a corpus marks in its column `word_starts`."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_encoders.corpus.collocations import Collocations
from hf_encoders.corpus.lexicon import Lexicon
from hf_encoders.corpus.unit_marking import EntityMarker
from hf_encoders.corpus.word_starts import WordStarts


class Units:
    """The units of a corpus besides tokens.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the corpus; a fast one where there is more than words.
        words (`bool`): Whether a word segmenter gives the words. Otherwise they are the tokenizer's own, where there
            are a lexicon or phrases.
        lexicon (`Sequence[str]`, *optional*): Entities: names and terms.
        phrases (`Sequence[str]` or `bool`, *optional*, defaults to `False`): Phrases; `True` learns them.

    Raises:
        ValueError: If a list has no entry, or none that the tokenizer can spell; or if the tokenizer shows no words.

    Attributes:
        marker (`EntityMarker` or `None`): What marks words and entities; `None` where there are no other units than a
            segmenter's words.
        phrases (`Lexicon`, `Collocations` or `None`): Given phrases, or how they are learned.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        words: bool,
        lexicon: Sequence[str] | None = None,
        phrases: Sequence[str] | bool = False,
    ):
        self.words = words
        self.lexicon = None if lexicon is None else Lexicon(lexicon, tokenizer)
        self.phrases: Lexicon | Collocations | None = None
        if phrases is True:
            self.phrases = Collocations()
        elif phrases is not False:
            self.phrases = Lexicon(phrases, tokenizer, "phrases")
        self.marker = None
        if self.lexicon or self.phrases:
            self.marker = EntityMarker(None if words else WordStarts(tokenizer), self.lexicon)

    @property
    def are_marked(self) -> bool:
        """Whether the corpus has the column `word_starts`."""
        return self.words or self.marker is not None

    @property
    def lists(self) -> dict[str, Lexicon]:
        """The given lists, by name."""
        found = {"lexicon": self.lexicon, "phrases": self.phrases}
        return {name: entries for name, entries in found.items() if isinstance(entries, Lexicon)}

    def settings(self) -> dict[str, Any]:
        """What decides about the units, for JSON; without lexicon and phrases, nothing."""
        settings: dict[str, Any] = {name: entries.settings() for name, entries in self.lists.items()}
        if isinstance(self.phrases, Collocations):
            settings["phrases"] = self.phrases.settings()
        return settings

    def reading(self) -> dict[str, Any]:
        """What `CorpusReport.reading` says of the lists: `unspelled`, entries that the tokenizer cannot spell."""
        found = {
            name: {"entries": len(entries.unspelled), "first": entries.unspelled[:3]}
            for name, entries in self.lists.items()
            if entries.unspelled
        }
        return {"unspelled": found} if found else {}
