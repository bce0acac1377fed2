"""A file is a command of `hf-encoders`; nothing imports them but `hf_encoders/cli.py`.

Its docstring is the command's help, `add_arguments` its options, `check` refuses paths, names and packages that are
wrong, and `run` does the work.
"""

# torch, transformers and datasets are imported inside of `run`: that takes seconds, and help and mistakes are told
# before. What a module that imports them writes out is read from its source, by `source_literals.constant`.
