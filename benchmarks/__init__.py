"""What is measured against a peer or a limit, side by side in one run."""
