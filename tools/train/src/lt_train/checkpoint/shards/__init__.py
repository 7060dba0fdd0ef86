"""Write a rank's shards to a disk or a store, with their checksums, and read shards from a store."""
