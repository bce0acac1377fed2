"""A file is a command of `hf-encoders`; nothing imports them but `hf_encoders/cli.py`.

Its docstring is the command's help, `add_arguments` its options, `check` refuses paths, names and packages that are
wrong, and `run` does the work.
"""

# torch, transformers and datasets are imported inside `run`: importing them takes seconds, for which help and mistakes
# need not wait. Literals of modules that import them are read from their source, by `source_literals.constant`.
