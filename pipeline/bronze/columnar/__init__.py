"""The vectorised pgoutput decoder: row messages in, Arrow columns out."""
