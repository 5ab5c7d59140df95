"""The state of this process: what was compiled, observed and called, and what the ledger has."""
