"""Index to sample, the seeded order of the data: pure; knows no file, worker, world size or clock."""
