"""Bronze as Delta tables: landing, copies, prepared transactions, the ledger, and what came when."""
