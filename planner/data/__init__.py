"""Data sets as maps: a row number in, its token ids out.

This package does not know order (which row comes when), batches, torch or Ray. It imports numpy at the top, and
libraries that read files or tokenize inside functions. A stream without random access is not a data set here: it could
not be resumed at another world size.

    base                            the protocols of all data sets
    text_files, jsonl, tokens       kinds whose rows are bytes
    conversations, sample_sets      kinds whose rows are prompts and completions
    document_tokens, document_sets  documents as ids of a tokenizer, and their samples
    model_folder, job_folders       the files of a Hugging Face model, found once, and of all models of a job
    model_checks                    whether planner can train such a model
    user_dataset                    a data set of the user's own
    open                            a job's data section -> the data set that reads it

`__init__` imports nothing, so that `paths` and `model_folder` stay light.
"""
