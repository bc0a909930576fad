"""Lakes on object stores and HDFS: their requests, and this machine's copy of what it reads and writes."""
