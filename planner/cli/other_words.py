"""Commands and options that people know from other tools -> what does that here. Loaded only after a wrong word."""

from collections.abc import Mapping

_TRAIN = "planner run JOB trains the job"
_RESUME = "planner run JOB resumes the job's run from its newest commit"
_AGAIN = "planner run resumes by itself: the same command goes on from the newest commit"
_EXPORT = "planner export RUN writes the model for transformers"
_PROBE = "planner probe PATH measures storage, network and GPU copies"
_COMPARE = "planner report RUN RUN compares runs, and planner verify JOB compares two histories"
_LOCAL = "planner run JOB starts a local Ray cluster by itself"
_WORKERS = "planner resizes by itself when nodes come or go: workers.min and workers.max in the job bound it"
_HISTORY = "planner show RUN lists the last events, and planner watch RUN shows them live"
_STATE = "planner show RUN tells how a run stands, and planner watch RUN shows it live"
_LIST = "planner runs FOLDER lists runs"
_STOP = "Ctrl-C or SIGTERM stops planner run after a commit, and ray job stop stops a submitted job"
_CHECK_JOB = "planner run JOB --dry-run checks a job and starts nothing, and planner plan JOB shows its batch"
_RECIPE = "planner convert RECIPE turns another system's recipe into a job"
_SERVER = "planner needs no server: planner watch RUN shows a run live, and planner report RUN writes a page"
_SAVE = "commits are written by themselves as checkpoint.every says, and planner export RUN writes one for transformers"
_EVAL = "the job's section eval computes the held-out loss during planner run JOB"
_INIT = "planner init writes a job file"
_SET = "--set KEY=VALUE overrides a value of the job"
_HELP = "planner --help lists the commands, and planner COMMAND --help explains one"
_OLD = "planner deletes no run: remove its folder"

# A word that is no command -> what does that.
COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("train", "launch", "finetune", "fine-tune", "exec", "execute", "go"), _TRAIN),
    **dict.fromkeys(("sft", "dpo", "kto", "orpo", "ipo", "simpo"), f"{_TRAIN}, whose objective is a key of the job"),
    **dict.fromkeys(("start", "up", "serve-ray", "local"), f"{_TRAIN}. Without --address, {_LOCAL}"),
    **dict.fromkeys(("resume", "continue", "restart", "retry", "recover"), _RESUME),
    **dict.fromkeys(("stop", "cancel", "kill", "abort", "down", "pause", "interrupt", "end"), _STOP),
    **dict.fromkeys(("status", "state", "info", "describe", "inspect", "get", "cat", "stat"), _STATE),
    **dict.fromkeys(("list", "ls", "ps", "jobs", "list-runs", "dir"), _LIST),
    **dict.fromkeys(("log", "logs", "events", "history", "tail", "ledger"), _HISTORY),
    **dict.fromkeys(("monitor", "top", "follow", "attach", "live", "board"), "planner watch RUN shows a run live"),
    **dict.fromkeys(("dashboard", "ui", "web", "serve", "server"), _SERVER),
    **dict.fromkeys(("dry-run", "dryrun", "validate", "lint", "test", "doctor"), _CHECK_JOB),
    **dict.fromkeys(("preview", "explain", "split", "estimate", "layout"), "planner plan JOB shows every split"),
    **dict.fromkeys(("resize", "scale", "workers", "nodes", "rescale", "elastic"), _WORKERS),
    **dict.fromkeys(("evaluate", "eval", "evaluation", "score"), _EVAL),
    **dict.fromkeys(("new", "create", "template", "setup", "quickstart", "make"), _INIT),
    **dict.fromkeys(("import", "migrate", "translate", "from-trl", "from-deepspeed"), _RECIPE),
    **dict.fromkeys(("save", "checkpoint", "checkpoints", "commit", "commits", "snapshot"), _SAVE),
    **dict.fromkeys(("push", "upload", "merge", "to-hf", "download"), _EXPORT),
    **dict.fromkeys(("send", "deploy", "remote", "queue"), "planner submit JOB sends a job to a Ray cluster"),
    **dict.fromkeys(("tokenize", "pack", "preprocess", "data", "make-data"), "planner prepare writes a token file"),
    **dict.fromkeys(("benchmark", "bench", "speed", "measure"), _PROBE),
    **dict.fromkeys(("compare", "diff"), _COMPARE),
    **dict.fromkeys(("prove", "certify", "certificate", "proof"), "planner audit RUN checks what each step used"),
    **dict.fromkeys(("plot", "draw", "page", "graph", "html"), "planner report RUN writes one page with pictures"),
    **dict.fromkeys(("sync", "wandb", "tensorboard", "mlflow"), "planner track RUN sends steps to a tracker"),
    **dict.fromkeys(("drain", "agent", "notice", "preempt"), "planner notice-agent waits for the cloud's notice"),
    **dict.fromkeys(("rm", "remove", "delete", "clean", "prune", "reset"), _OLD),
    **dict.fromkeys(("config", "set", "configure", "get-config"), f"{_SET}, and planner schema prints all keys"),
    **dict.fromkeys(("help", "man", "usage", "commands"), _HELP),
    "version": "planner --version prints the version",
    "example": "planner demo shows it on four local nodes, and planner init writes a job file",
}

# An option that a command lacks -> what does that.
OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("--resume", "--resume-from", "--resume-from-checkpoint", "--continue"), _AGAIN),
    **dict.fromkeys(("--steps", "--max-steps", "--epochs", "--num-train-epochs"), "Write --set train.steps=400"),
    **dict.fromkeys(("--lr", "--learning-rate"), "Write --set train.optimizer.lr=1e-4"),
    **dict.fromkeys(("--batch-size", "--batch", "--global-batch"), "Write --set batch.global=64"),
    **dict.fromkeys(("--micro-batch", "--micro-batch-size", "--max-micro"), "Write --set batch.max_micro=8"),
    **dict.fromkeys(("--workers", "--num-workers", "--nproc-per-node", "--num-processes"), "Write --set workers.max=4"),
    **dict.fromkeys(("--output", "--output-dir", "--checkpoint", "--run"), "Write --set checkpoint.path=FOLDER"),
    **dict.fromkeys(("--config", "--job", "--file", "-c", "-f"), "The job file needs no option: planner run job.yaml"),
    **dict.fromkeys(("--seed",), "Write --set train.seed=1"),
    **dict.fromkeys(("--model", "--model-name-or-path"), "Write --set model.path=FOLDER"),
    **dict.fromkeys(("--data", "--dataset", "--dataset-name"), "Write --set data.path=FILE"),
    **dict.fromkeys(("--quiet", "-q", "--silent"), "Send the output elsewhere: planner ... > FILE"),
    **dict.fromkeys(("-h", "-help", "-?"), "Write --help"),
    **dict.fromkeys(("-v", "-V", "-version", "--version"), "planner --version prints the version"),
}
