"""Dialogues as documents: turns are sentences, and their places tell their roles.

Even sentences are queries and odd ones responses. Where one side speaks twice in a row, or a response comes first, an
empty sentence holds the place between. So a corpus of dialogues has the columns of any other, and objectives that know
no roles read its turns as sentences.
"""

from typing import Any


# Roles of ERNIE's dialogue language model (https://arxiv.org/abs/1904.09223, section 3.3), and their names in chats.
ROLES = {"query": 0, "response": 1, "user": 0, "assistant": 1}
TEXT_FIELDS = ("text", "content")


def sentences_of_turns(turns: Any) -> list[str]:
    """The turns of a dialogue, queries at even places and responses at odd ones; blank turns are left out.

    Args:
        turns (`list`): `str`, of which the first is a query and the others alternate; or objects with `role` ("query"
            or "user", "response" or "assistant") and `text` (or `content`).

    Raises:
        ValueError: naming what is neither.

    >>> sentences_of_turns(["How are you?", "Fine.", "Good."])
    ['How are you?', 'Fine.', 'Good.']
    >>> spoken = ("user", "Hello?"), ("user", "Anybody there?"), ("assistant", "Yes.")
    >>> sentences_of_turns([{"role": role, "text": text} for role, text in spoken])
    ['Hello?', '', 'Anybody there?', 'Yes.']
    """
    if not isinstance(turns, list):
        raise ValueError(f"{turns!r:.80} is not a list of turns: leave out or repair that dialogue.")
    sentences: list[str] = []
    for place, turn in enumerate(turns):
        role, text = (place % 2, turn) if isinstance(turn, str) else _role_and_text(turn)
        if isinstance(turn, str) != isinstance(turns[0], str):
            raise ValueError(
                f"turn {place} is {turn!r:.80}, and turn 0 is {turns[0]!r:.80}: give all turns of a dialogue a role, "
                "or none."
            )
        if text.strip():
            if len(sentences) % 2 != role:
                sentences.append("")
            sentences.append(text)
    return sentences


def _role_and_text(turn: Any) -> tuple[int, str]:
    """The role of a turn, 0 or 1, and its text."""
    turn = turn if isinstance(turn, dict) else {"role": turn}
    role = turn.get("role")
    text = next((turn[name] for name in TEXT_FIELDS if name in turn), None)
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(
            f"a turn with role {role!r:.80}: it must be one of {', '.join(ROLES)}; leave other turns out, or give "
            "turns that alternate as a list of str."
        )
    if not isinstance(text, str):
        raise ValueError(f"a turn has {turn!r:.80}, and no text: give it as a str in {' or '.join(TEXT_FIELDS)}.")
    return ROLES[role], text
