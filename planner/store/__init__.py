"""What a run leaves on disk: claims, ledger segments, manifests, checkpoint files; and what can be trusted of it.

The room knows fsspec and the formats. It does not know torch (tensors are `planner.train.checkpoints`'s), Ray,
nor what a step should have contained (`planner.provenance.audit` derives that).

    <run>/run.json                       the run's identity, written once
    <run>/jobs/<digest>.json             every job this run was made with
    <run>/drivers/000002.json            the lease of the driver that runs it, or ran it last
    <run>/generations/000003.json        one claim per life of a worker group, put-if-absent
    <run>/ledger/000003.jsonl            that generation's records, hash-chained
    <run>/manifests/000120-000003.json   a commit: step 120, by generation 3, written last
    <run>/checkpoints/000120-000003/     the tensors of that commit, sharded
"""
