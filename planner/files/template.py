"""The job file that `planner init` writes: it runs unchanged on any machine, and shows every setting."""

from planner.base.text import enumerated
from planner.files.schema import EDITOR_LINE
from planner.job.tracking import TRACKERS

# The column of remarks, minus the two spaces before a key and the one before the remark.
_COLUMN = 28
# A commented line `# key: value` is a setting at its default. A test compares all of them with the model.
_STARTER = """\
{editor_line}
# A first job: it trains on this machine's CPU within a minute. On GPUs, change the lines that say GPUs.
# Lines that begin with `# key:` are settings at their defaults. Remove the # to change one.
name: {name}

model:
  kind: gpt                    # a small decoder-only transformer over bytes
  layers: 2
  width: 64                    # a multiple of heads
  heads: 4
  context: 64                  # tokens (bytes) per sample
  # dropout: 0.0
  # tied_embeddings: false     # one matrix for the token embedding and the head

data:
  kind: text                   # files as one stream of bytes (or jsonl, a row per line)
  path: python-stdlib          # yours: a file, a folder, or a glob such as "corpus/**/*.txt"
  # With jsonl, `field` names the key that holds the text: {{kind: jsonl, path: "rows/*.jsonl", field: text}}

objective: lm                  # next-token prediction

batch:
  global: 64                   # samples per optimizer step, exactly, on any number of workers
  max_micro: 16                # the most samples in one forward pass. GPUs: what fits into memory
  # equality: balanced         # or bitwise: the same weights to the last bit at any number of workers

train:
  steps: 60                    # optimizer steps (or epochs, passes over all samples, or examples)
  # seed: 0
  optimizer:
    kind: adamw                # or rmsprop, sgd
    lr: 3e-3                   # peak learning rate
    # betas: [0.9, 0.999]
    # eps: 1e-8
    weight_decay: 0.1
  schedule:
    kind: cosine               # or linear, constant
    warmup: 10 steps           # or 640 examples, 0.1 epochs, 10% of the run
    final_fraction: 0.1        # of the peak rate, at the last step
  # clip_norm: 1.0             # of the global gradient (null: no clipping)
  # precision: fp32            # GPUs: bf16
  # activation_checkpointing: false
  # compile: false             # or blocks: compile each block of the model
  # kernels: auto              # or liger: Liger's kernels (GPUs)
  # non_finite: stop           # or skip: skip and log a step whose gradient is not finite

eval:
  samples: 64                  # held out of the training order (0: no evaluation)
  every: 20 steps

workers:
  # min: 1                     # with fewer, the run waits
  # min_on: any                # or on-demand: min workers are on such nodes, so losing all spot nodes stops nothing
  # max: 8                     # GPUs: the most that the run may have
  # cpus: 1.0                  # of one worker. GPUs: a few cores each
  gpus: 0                      # of one worker. GPUs: 1
  # resources: {{}}              # custom Ray resources of one worker, such as {{fast_disk: 1}}
  # loader_processes: 0        # per worker, to read its next steps (0: a thread in the worker)
  # keep_processes: auto       # or never: every resize starts new worker processes

checkpoint:
  {path} # a folder that all machines see, or a URL such as s3://bucket/run
  # every: auto                # or from one commit to the next: 100 steps, 6400 examples, 0.1 epochs, 10%
  # keep: 2                    # newest commits whose files are kept
  # verify: on_load            # or read_back: compare files with their digests after writing, too
  # memory: auto               # copies on this node and the next one, for resizes and lost nodes. Or off, or steps

# Where the run's curves are sent: {trackers}. One, or a list
# tracking: []
"""


def template_job(name: str) -> str:
    """The text of a job file with every section. Settings left at their defaults are comments."""
    path = f"path: runs/{name}".ljust(_COLUMN)
    trackers = enumerated(TRACKERS.kinds(), "or")
    return _STARTER.format(editor_line=EDITOR_LINE, name=name, path=path, trackers=trackers)
