"""Lakes on object stores: the store's few requests, and this machine's copy of what it reads and writes."""
