"""Questions to a cluster: what a job needs before it runs, and transactions as the brokers see them."""
