"""Settings for tiny models: small buffers and one thread, so that loading takes milliseconds."""

EXECUTOR = "torch"
QUICK_OPTIONS = {"threads": 1, "executor": EXECUTOR}
QUICK = ["--kv-memory", "1MB", "--threads", "1", "--executor", EXECUTOR]
