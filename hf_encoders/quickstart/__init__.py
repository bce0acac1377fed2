"""The command `hf-encoders quickstart`; `command.py` tells the story, the other files do the parts."""
