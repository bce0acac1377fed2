"""Names of files of a run, and of fields in them, that several parts of the package read."""

RUN_FILE = "run.json"  # settings and progress of a pre-training run
RECORD_FILE = "training_record.json"
HEALTH_STATE = "HealthCallback"  # in the stateful callbacks of trainer_state.json
WARNINGS_FIELD = "health_warnings"  # of a log entry: {name: message}
