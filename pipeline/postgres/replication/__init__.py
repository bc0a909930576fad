"""The replication slot and the two routes by which its changes are read: walsender and SQL."""
