"""A person looks at suspicious labels on a page of this machine, and decides."""
