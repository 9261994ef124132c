"""The run's folder: claims, ledger segments, manifests and checkpoint files, and which of them are intact.

The room knows fsspec and the stored formats. It knows neither Ray nor torch (`planner.train.checkpoints` reads
tensors), nor what a step should have contained (`planner.provenance.audit` derives that).

    <run>/run.json                       the run's name, written once
    <run>/jobs/<digest>.json             every job that this run was made with
    <run>/drivers/000002.json            the lease of the driver that runs it, or ran it last
    <run>/generations/000003.json        the claim of generation 3, put-if-absent
    <run>/ledger/000003.jsonl            the records of generation 3, hash-chained
    <run>/manifests/000120-000003.json   a commit: step 120 by generation 3, written last
    <run>/checkpoints/000120-000003/     the sharded tensors of that commit
"""
