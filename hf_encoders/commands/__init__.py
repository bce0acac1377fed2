"""A file is a command of `hf-encoders`; nothing imports them but `hf_encoders/cli.py`."""
