"""Data sets as maps: a row number in, its token ids out.

The room does not know order (which row comes when), batches, torch or Ray. It imports numpy at the top, and libraries
that read files or tokenize inside functions. A stream without random access is not a data set here: it could not be
resumed at another world size.

    base                            what every data set answers
    text_files, jsonl, tokens       kinds whose rows are bytes
    conversations, sample_sets      kinds whose rows are prompts and completions
    user_dataset                    a data set of the user's own
    open                            from a job's data section to the data set that reads it

Nothing is imported here, so that `paths` and `model_files` stay light.
"""
