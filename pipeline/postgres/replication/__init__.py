"""The replication slot and the two routes by which its changes come: walsender and SQL."""
