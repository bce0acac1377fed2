"""Names of the files of a run, and of the fields in them, that more than one part of the package reads."""

RUN_FILE = "run.json"  # of a pre-training run: what it is made of, as far as it has come
RECORD_FILE = "training_record.json"
HEALTH_STATE = "HealthCallback"  # in the stateful callbacks of trainer_state.json
WARNINGS_FIELD = "health_warnings"  # of a log entry: {name: message}
